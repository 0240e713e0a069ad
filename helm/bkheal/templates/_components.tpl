{{/* The long-running components that are on, as a JSON list of {name, pods, values}. */}}
{{- define "bkheal.components" -}}
{{- $all := list -}}
{{- if eq .Values.mode "service" -}}
{{- $all = append $all (dict "name" "auditor" "pods" .Values.auditor.replicas "values" .Values.auditor) -}}
{{- end -}}
{{- if include "bkheal.hasExporter" . -}}
{{- $all = append $all (dict "name" "exporter" "pods" 1 "values" .Values.exporter) -}}
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
{{- if and (include "bkheal.hasAuditJobs" .) .Values.cron.ports.http }}{{ $all = append $all "audit" }}{{ end -}}
{{- toJson $all -}}
{{- end -}}

{{/* Whether audits run in Jobs, by a schedule or as one-off runs. */}}
{{- define "bkheal.hasAuditJobs" -}}
{{- if or (eq .Values.mode "cron") (and (eq .Values.mode "service") .Values.oneOff.enabled) }}true{{ end -}}
{{- end -}}

{{/* Whether there is an exporter: where no auditor of this release leads, or where it is asked for. */}}
{{- define "bkheal.hasExporter" -}}
{{- $when := .Values.exporter.when -}}
{{- if or (eq $when "always") (and (eq $when "cron") (eq .Values.mode "cron")) }}true{{ end -}}
{{- end -}}

{{/* Whether some pod of this release shows the state of the cluster. */}}
{{- define "bkheal.showsCluster" -}}
{{- if or (eq .Values.mode "service") (include "bkheal.hasExporter" .) }}true{{ end -}}
{{- end -}}

{{/* A matcher of the series of this cluster and no other, as the chart's monitors label them. */}}
{{- define "bkheal.ownSeries" -}}
{{- with .Values.bookkeeper.clusterName }}cluster={{ . | quote }}{{ else }}namespace={{ $.Release.Namespace | quote }}{{ end -}}
{{- end -}}

{{/* The labels that series of one cluster share. With a name, replicators may be in another namespace; a selector of one
namespace keeps clusters with the same name apart. */}}
{{- define "bkheal.scope" -}}
{{- if and .Values.bookkeeper.clusterName (not (regexMatch `\bnamespace *= *[^~ ]` .Values.metrics.prometheusRule.selector)) }}cluster{{ else }}cluster, namespace{{ end -}}
{{- end -}}

{{/* The values of the TLS of a component's HTTP port, as JSON; empty: it is plain. Of (dict "root" $ "component" c). */}}
{{- define "bkheal.httpTls" -}}
{{- if has .component (list "auditor" "exporter") -}}
{{- $tls := (get .root.Values .component).tls -}}
{{- if $tls.existingSecret }}{{ toJson $tls }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* How a process is scraped: with a client certificate if there is one for it. */}}
{{- define "bkheal.scrape" -}}
path: /metrics
interval: {{ .monitor.interval }}
scrapeTimeout: {{ .monitor.scrapeTimeout }}
honorLabels: true
{{- if include "bkheal.httpTls" . }}
{{- $client := .root.Values.metrics.clientTls }}
scheme: {{ .scheme }}
tlsConfig:
  {{- if and $client.existingSecret $client.caKey }}
  ca: {secret: {name: {{ $client.existingSecret }}, key: {{ $client.caKey }}}}
  {{- else }}
  insecureSkipVerify: true
  {{- end }}
  {{- if $client.existingSecret }}
  cert: {secret: {name: {{ $client.existingSecret }}, key: {{ $client.certKey }}}}
  keySecret: {name: {{ $client.existingSecret }}, key: {{ $client.keyKey }}}
  {{- end }}
  {{- with $client.serverName }}
  serverName: {{ . }}
  {{- end }}
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

{{/* Where browsers find the auditors' API: what is given, else the first host of the HTTPRoute or the Ingress that serves
all of it, else the Service of the leader. Empty without auditors. */}}
{{- define "bkheal.publicUrl" -}}
{{- if eq .Values.mode "service" -}}
{{- $hosts := include "bkheal.outsideUrls" . | fromJsonArray -}}
{{- if .Values.auditor.publicUrl -}}
{{- trimSuffix "/" .Values.auditor.publicUrl -}}
{{- else if $hosts -}}
{{- first $hosts -}}
{{- else -}}
{{- $scheme := ternary "https" "http" (ne .Values.auditor.tls.existingSecret "") -}}
{{- printf "%s://%s-leader.%s.svc.%s:%v" $scheme (include "bkheal.fullname" .) .Release.Namespace (include "bkheal.clusterDomain" .) .Values.auditor.ports.http -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether other machines reach the leader's Spark UI: not if its buttons work for anybody on its own machine. */}}
{{- define "bkheal.hasLeaderUi" -}}
{{- $config := .Values.config.auditor -}}
{{- $isOn := ternary $config.ui_enabled .Values.auditor.ui.enabled (hasKey $config "ui_enabled") -}}
{{- if and $isOn (not $config.ui_allow_anonymous) }}true{{ end -}}
{{- end -}}

{{/* URLs of the hosts of the HTTPRoute and the Ingress that lead to the root of the API, as a JSON list. */}}
{{- define "bkheal.outsideUrls" -}}
{{- $urls := list -}}
{{- with .Values.httpRoute -}}
{{- $isWhole := false -}}
{{- range .paths }}{{ if and (eq .path "/") (eq (default "http" .port) "http") }}{{ $isWhole = true }}{{ end }}{{ end -}}
{{- if and .enabled $isWhole -}}
{{- range .hostnames }}{{ if not (contains "*" .) }}{{ $urls = append $urls (printf "%s://%s" $.Values.httpRoute.scheme .) }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if .Values.ingress.enabled -}}
{{- $secured := list -}}
{{- range .Values.ingress.tls }}{{ $secured = concat $secured (default list .hosts) }}{{ end -}}
{{- range $host := .Values.ingress.hosts -}}
{{- range .paths -}}
{{- if and (eq (default "http" .port) "http") (eq .path "/") (not (contains "*" $host.host)) -}}
{{- $urls = append $urls (printf "%s://%s" (ternary "https" "http" (has $host.host $secured)) $host.host) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $urls -}}
{{- end -}}
