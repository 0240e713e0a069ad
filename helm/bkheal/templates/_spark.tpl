{{/* Spark's files: the defaults, and the template of executor pods. */}}

{{- define "bkheal.sparkFiles" -}}
spark-defaults.conf: |
  {{- include "bkheal.sparkDefaults" . | nindent 2 }}
{{- if include "bkheal.isK8sClient" . }}
executor.yaml: |
  {{- include "bkheal.executorTemplate" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "bkheal.sparkDefaults" -}}
{{- $s := dict "spark.ui.killEnabled" "false" "spark.sql.warehouse.dir" "/var/lib/bkheal/spark/warehouse" "spark.jars.ivy" "/tmp/.ivy2" -}}
{{- with .Values.spark.eventLog -}}
{{- if .enabled }}{{ $_ := set $s "spark.eventLog.enabled" "true" }}{{ $_ := set $s "spark.eventLog.dir" .dir }}{{ end -}}
{{- end -}}
{{- if include "bkheal.isK8sClient" . -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.executorSettings" . | fromJson)) -}}
{{- end -}}
{{- include "bkheal.setAll" (dict "into" $s "from" .Values.spark.conf) -}}
{{- range $key := keys $s | sortAlpha }}
{{- with include "bkheal.number" (get $s $key) }}
{{ $key }} {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "bkheal.executorSettings" -}}
{{- $e := .Values.spark.executor -}}
{{- $k := .Values.spark.k8s -}}
{{- $s := dict
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.container.image" (include "bkheal.image" .)
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "bkheal.serviceAccountName" .)
  "spark.kubernetes.executor.podTemplateFile" "/etc/bkheal-spark/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.executor.request.cores" $e.requestCores
  "spark.executor.instances" (include "bkheal.number" $e.instances)
  "spark.executor.cores" (include "bkheal.number" $e.cores)
  "spark.executor.memory" $e.memory
  "spark.executor.memoryOverhead" $e.memoryOverhead
  "spark.driver.bindAddress" (include "bkheal.listenAddress" . | replace "::" "[::]")
  "spark.driver.port" (include "bkheal.number" $k.driverPort)
  "spark.blockManager.port" (include "bkheal.number" $k.blockManagerPort) -}}
{{- with $e.limitCores }}{{ $_ := set $s "spark.kubernetes.executor.limit.cores" . }}{{ end -}}
{{- with include "bkheal.pullSecrets" . | fromJsonArray }}{{ $_ := set $s "spark.kubernetes.container.image.pullSecrets" (join "," .) }}{{ end -}}
{{- /* An executor with cached blocks stays, as Spark's default: a lost block would read ZooKeeper again. */ -}}
{{- with $e.dynamicAllocation -}}
{{- if .enabled -}}
{{- $_ := unset $s "spark.executor.instances" -}}
{{- $_ := set $s "spark.dynamicAllocation.enabled" "true" -}}
{{- $_ := set $s "spark.dynamicAllocation.shuffleTracking.enabled" "true" -}}
{{- $_ := set $s "spark.dynamicAllocation.initialExecutors" (include "bkheal.number" $e.instances) -}}
{{- $_ := set $s "spark.dynamicAllocation.minExecutors" (include "bkheal.number" .minInstances) -}}
{{- $_ := set $s "spark.dynamicAllocation.maxExecutors" (include "bkheal.number" .maxInstances) -}}
{{- $_ := set $s "spark.dynamicAllocation.executorIdleTimeout" (printf "%vs" (include "bkheal.number" .idleTimeoutSeconds)) -}}
{{- end -}}
{{- end -}}
{{- toJson $s -}}
{{- end -}}

{{/* Spark fills in image, arguments, memory and cores. */}}
{{- define "bkheal.executorTemplate" -}}
{{- $of := dict "root" . "component" "executor" "values" .Values.spark.executor -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "bkheal.podLabels" $of | nindent 4 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.spark.executor.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.spark.executor.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.spark.executor.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: executor
      {{- with .Values.spark.executor }}
      {{- if or .ephemeralStorageRequest .ephemeralStorageLimit }}
      resources:
        {{- with .ephemeralStorageRequest }}
        requests: {ephemeral-storage: {{ . }}}
        {{- end }}
        {{- with .ephemeralStorageLimit }}
        limits: {ephemeral-storage: {{ . }}}
        {{- end }}
      {{- end }}
      {{- end }}
      {{- with .Values.spark.executor.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "bkheal.envFrom" $of }}
      {{- . | nindent 6 }}
      {{- end }}
      securityContext:
        {{- toYaml .Values.containerSecurityContext | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: reports, mountPath: {{ include "bkheal.paths.reports" . }}}
        {{- include "bkheal.zookeeperMounts" . | nindent 8 }}
        {{- include "bkheal.clientMounts" . | nindent 8 }}
        {{- include "bkheal.inventoryMounts" . | nindent 8 }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- include "bkheal.reportsVolume" . | nindent 4 }}
    {{- include "bkheal.zookeeperVolumes" . | nindent 4 }}
    {{- include "bkheal.clientVolumes" . | nindent 4 }}
    {{- include "bkheal.inventoryVolumes" . | nindent 4 }}
{{- end -}}
