{{/* Rules of NetworkPolicies. No peers: for ingress this namespace, for egress anywhere. Pods of `helm test` always get in. */}}
{{- define "bkheal.policyPorts" -}}
ports:
  {{- range . }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- end -}}
{{- define "bkheal.ingressRule" }}
- from:
    {{- if .from }}
    {{- toYaml .from | nindent 4 }}
    - podSelector:
        matchLabels:
          {{- include "bkheal.selectorLabels" (dict "root" .root "component" "test") | nindent 10 }}
    {{- else }}
    - podSelector: {}
    {{- end }}
  {{- include "bkheal.policyPorts" .ports | nindent 2 }}
{{- end -}}
{{- define "bkheal.egressRule" }}
- {{ include "bkheal.policyPorts" .ports | nindent 2 | trim }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{/* Ports of ZooKeeper, separated by spaces: those of the values, and those in the URI, unless it is in a ConfigMap. */}}
{{- define "bkheal.zookeeperPorts" -}}
{{- $ports := toStrings .Values.networkPolicy.egress.zookeeperPorts -}}
{{- range regexFindAll ":[0-9]+([,;/]|$)" (include "bkheal.metadataUri" .) -1 -}}
{{- $ports = append $ports (regexFind "[0-9]+" .) -}}
{{- end -}}
{{- uniq $ports | join " " -}}
{{- end -}}
{{/* Auditors relay connections to the leader. */}}
{{- define "bkheal.auditorPeers" -}}
- podSelector:
    matchLabels:
      {{- include "bkheal.selectorLabels" (dict "root" . "component" "auditor") | nindent 6 }}
{{- end -}}
{{- define "bkheal.sparkPeers" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ include "bkheal.name" . }}
      app.kubernetes.io/instance: {{ .Release.Name }}
    matchExpressions:
      - {key: app.kubernetes.io/component, operator: In, values: [auditor, audit, executor]}
{{- end -}}
