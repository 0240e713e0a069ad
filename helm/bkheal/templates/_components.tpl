{{/* The long-running components that are on, as a JSON list of {name, pods, values}. */}}
{{- define "bkheal.components" -}}
{{- $all := list -}}
{{- if eq .Values.mode "service" -}}
{{- $all = append $all (dict "name" "auditor" "pods" .Values.auditor.replicas "values" .Values.auditor) -}}
{{- end -}}
{{- if .Values.replicator.enabled -}}
{{- $all = append $all (dict "name" "replicator" "pods" (include "bkheal.replicatorsMax" . | int) "values" .Values.replicator) -}}
{{- end -}}
{{- if .Values.bookies.enabled -}}
{{- $all = append $all (dict "name" "bookie" "pods" .Values.bookies.replicas "values" .Values.bookies) -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* The components that are scraped as pods: those, and CronJobs' pods while they run, as they have no Service. */}}
{{- define "bkheal.scrapedPods" -}}
{{- $all := list -}}
{{- range include "bkheal.components" . | fromJsonArray }}{{ $all = append $all .name }}{{ end -}}
{{- if and (eq .Values.mode "cron") .Values.cron.ports.http }}{{ $all = append $all "audit" }}{{ end -}}
{{- toJson $all -}}
{{- end -}}

{{/* How an auditor with TLS is scraped. */}}
{{- define "bkheal.scrape" -}}
path: /metrics
interval: {{ .monitor.interval }}
scrapeTimeout: {{ .monitor.scrapeTimeout }}
honorLabels: true
{{- if and (eq .component "auditor") .root.Values.auditor.tls.existingSecret }}
scheme: {{ .scheme }}
tlsConfig: {insecureSkipVerify: true}
{{- end }}
{{- with .root.Values.metrics.bearerTokenSecret }}
{{- if and .name (eq $.component "auditor") }}
authorization:
  credentials: {name: {{ .name }}, key: {{ .key }}}
{{- end }}
{{- end }}
{{- with .root.Values.bookkeeper.clusterName }}
{{ $.relabel }}:
  - {targetLabel: cluster, replacement: {{ . | quote }}}
{{- end }}
{{- end -}}
