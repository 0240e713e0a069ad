{{/* A regular expression of the kinds that CronJobs of this release run, not as dry runs. In other modes, CronJobs of
other releases may run any kind. */}}
{{- define "bkheal.cronKinds" -}}
{{- if ne .Values.mode "cron" }}.+{{ else -}}
{{- $kinds := list -}}
{{- range $kind := keys .Values.cron.kinds | sortAlpha -}}
{{- if and (get $.Values.cron.kinds $kind).enabled (not $.Values.cron.dryRun) }}{{ $kinds = append $kinds $kind }}{{ end -}}
{{- end -}}
{{- join "|" $kinds | default "none" -}}
{{- end -}}
{{- end -}}

{{/* Jobs of audits, of (dict "root" $ "kind" k "deadline" seconds "args" list). */}}
{{- define "bkheal.auditJob" -}}
{{- $root := .root -}}
{{- $c := $root.Values.cron -}}
{{- $of := dict "root" $root "component" "audit" "config" "audit" "values" $c "spark" true "port" $c.ports.http -}}
{{- $listed := list -}}
{{- range $c.failJobExitCodes }}{{ $listed = append $listed (int .) }}{{ end -}}
{{- if ne $c.failOn "never" }}{{ $listed = append $listed 1 }}{{ end -}}
{{- $failCodes := list -}}{{- /* in order, as Kubernetes demands */ -}}
{{- range $code := untilStep 1 256 1 -}}
{{- if has $code $listed }}{{ $failCodes = append $failCodes $code }}{{ end -}}
{{- end -}}
metadata:
  labels:
    {{- include "bkheal.podLabels" $of | nindent 4 }}
    bkheal.io/audit-kind: {{ .kind }}
spec:
  backoffLimit: {{ $c.backoffLimit }}
  activeDeadlineSeconds: {{ .deadline }}
  ttlSecondsAfterFinished: {{ $c.ttlSecondsAfterFinished }}
  podFailurePolicy:
    rules:
      - action: Ignore
        onPodConditions:
          - {type: DisruptionTarget, status: "True"}
      {{- with $failCodes }}
      - action: FailJob
        onExitCodes:
          containerName: audit
          operator: In
          values: {{ toJson . }}
        onPodConditions: []  # Kubernetes 1.28 calls it required
      {{- end }}
  template:
    metadata:
      labels:
        {{- include "bkheal.podLabels" $of | nindent 8 }}
        bkheal.io/audit-kind: {{ .kind }}
      annotations:
        {{- include "bkheal.podAnnotations" $of | nindent 8 }}
    spec:
      restartPolicy: Never
      {{- include "bkheal.podSettings" $of | nindent 6 }}
      {{- include "bkheal.initContainers" $of | nindent 6 }}
      containers:
        - name: audit
          {{- include "bkheal.container" $root | nindent 10 }}
          {{- if $c.busyIsSuccess }}
          command: [tini, -e, "75", --, bkheal]
          {{- end }}
          args: {{ concat (list "--log-level" $root.Values.logLevel "audit" "run" "--kind" .kind) (default list .args) | toJson }}
          env:
            {{- include "bkheal.env" $of | nindent 12 }}
          {{- include "bkheal.envFrom" $of | nindent 10 }}
          {{- if or $c.ports.http (include "bkheal.isK8sClient" $root) }}
          ports:
            {{- with $c.ports.http }}
            - {name: http, containerPort: {{ . }}}
            {{- end }}
          {{- end }}
          {{- if include "bkheal.isK8sClient" $root }}
            - {name: driver, containerPort: {{ $root.Values.spark.k8s.driverPort }}}
            - {name: blockmanager, containerPort: {{ $root.Values.spark.k8s.blockManagerPort }}}
          {{- end }}
          resources:
            {{- toYaml $c.resources | nindent 12 }}
          volumeMounts:
            {{- include "bkheal.mounts" $of | nindent 12 }}
        {{- with $c.sidecars }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        {{- include "bkheal.volumes" $of | nindent 8 }}
{{- end -}}
