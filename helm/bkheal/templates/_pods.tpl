{{/* What all pods have in common. Each takes (dict "root" $ "component" c "values" .Values.c …). */}}

{{/* A change of what is summed up here replaces pods; the rest of their files arrives while they run. */}}
{{- define "bkheal.podAnnotations" -}}
{{- /* Bookies do not read the topology. */}}
{{- $topology := ternary dict .root.Values.placement.topology (eq .component "bookie") }}
checksum/config: {{ include "bkheal.readAtStart" . | cat (toJson $topology) | sha256sum }}
{{- if .spark }}
checksum/spark: {{ include "bkheal.sparkFiles" .root | sha256sum }}
{{- end }}
{{- if and .root.Values.metrics.annotations .port }}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ .port | quote }}
{{- if include "bkheal.httpTls" . }}
prometheus.io/scheme: https
{{- end }}
{{- end }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* From service account to scheduling. */}}
{{- define "bkheal.podSettings" -}}
{{- $isDriver := and .spark (include "bkheal.isK8sClient" .root) -}}
serviceAccountName: {{ if $isDriver }}{{ include "bkheal.driverServiceAccountName" .root }}{{ else }}{{ include "bkheal.serviceAccountName" .root }}{{ end }}
automountServiceAccountToken: {{ if $isDriver }}true{{ else }}false{{ end }}
enableServiceLinks: false
{{- with include "bkheal.pullSecrets" .root | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "bkheal.spread" . }}
{{- end -}}

{{- define "bkheal.spread" -}}
{{- $preset := default "none" .values.podAntiAffinityPreset }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else if ne $preset "none" }}
affinity:
  podAntiAffinity:
    {{- if eq $preset "hard" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "bkheal.selectorLabels" . | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "bkheal.selectorLabels" . | nindent 14 }}
    {{- end }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $constraint := deepCopy . }}
  {{- if not (hasKey $constraint "labelSelector") }}
  {{- $_ := set $constraint "labelSelector" (dict "matchLabels" (include "bkheal.selectorLabels" $ | fromYaml)) }}
  {{- end }}
  - {{ toYaml $constraint | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Image and security of any container of ours. */}}
{{- define "bkheal.container" -}}
image: {{ include "bkheal.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.containerSecurityContext | nindent 2 }}
{{- end -}}

{{/* Where the cluster is, and how ZooKeeper is reached: what every command needs, with bkheal.zookeeperMounts. */}}
{{- define "bkheal.clusterEnv" -}}
- name: BKHEAL_METADATA_URI
{{- if .Values.bookkeeper.existingConfigMap.name }}
  valueFrom:
    configMapKeyRef:
      name: {{ .Values.bookkeeper.existingConfigMap.name }}
      key: {{ .Values.bookkeeper.existingConfigMap.key }}
{{- else }}
  value: {{ include "bkheal.metadataUri" . | quote }}
{{- end }}
{{- with .Values.bookkeeper.zookeeper }}
{{- if .tls.existingSecret }}
- {name: BKHEAL_ZK_TLS_CA, value: {{ include "bkheal.paths.zookeeperTls" $ }}/ca.crt}
- {name: BKHEAL_ZK_TLS_CERT, value: {{ include "bkheal.paths.zookeeperTls" $ }}/tls.crt}
- {name: BKHEAL_ZK_TLS_KEY, value: {{ include "bkheal.paths.zookeeperTls" $ }}/tls.key}
{{- end }}
{{- if .login.existingSecret }}
- {name: BKHEAL_ZK_LOGIN, value: DIGEST-MD5}
- {name: BKHEAL_ZK_USERNAME, value: {{ .login.username | quote }}}
- {name: BKHEAL_ZK_PASSWORD_FILE, value: {{ include "bkheal.paths.zookeeperLogin" $ }}/password}
{{- end }}
{{- if ne .acl "world" }}
- {name: BKHEAL_ZK_ACL, value: {{ .acl | quote }}}
{{- end }}
{{- if ne .stateRoot "/bkheal" }}
- {name: BKHEAL_STATE_ROOT, value: {{ .stateRoot | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* What those variables name. */}}
{{- define "bkheal.zookeeperMounts" -}}
{{- if .Values.bookkeeper.zookeeper.tls.existingSecret }}
- {name: zookeeper-tls, mountPath: {{ include "bkheal.paths.zookeeperTls" . }}, readOnly: true}
{{- end }}
{{- if .Values.bookkeeper.zookeeper.login.existingSecret }}
- {name: zookeeper-login, mountPath: {{ include "bkheal.paths.zookeeperLogin" . }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bkheal.zookeeperVolumes" -}}
{{- with .Values.bookkeeper.zookeeper }}
{{- if .tls.existingSecret }}
- name: zookeeper-tls
  secret:
    secretName: {{ .tls.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .tls.caKey }}, path: ca.crt}
      - {key: {{ .tls.certKey }}, path: tls.crt}
      - {key: {{ .tls.keyKey }}, path: tls.key}
{{- end }}
{{- if .login.existingSecret }}
- name: zookeeper-login
  secret:
    secretName: {{ .login.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .login.passwordKey }}, path: password}
{{- end }}
{{- end }}
{{- end -}}

{{- define "bkheal.env" -}}
{{ include "bkheal.clusterEnv" .root }}
- name: BKHEAL_CONFIG
  value: {{ include "bkheal.paths.config" .root }}/bkheal.toml
{{- if not (has .component (list "bookie" "exporter")) }}
{{- include "bkheal.clientEnv" .root }}
{{- end }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if eq .component "auditor" }}
- name: BKHEAL_AUDITOR_ADVERTISED_HOST
  value: $(POD_IP)
{{- end }}
{{- if .spark }}
- name: SPARK_CONF_DIR
  value: /etc/bkheal-spark
- name: SPARK_LOCAL_DIRS
  value: /var/lib/bkheal/spark
{{- if include "bkheal.isK8sClient" .root }}
- name: PYSPARK_SUBMIT_ARGS
  value: --conf spark.driver.host={{ if eq (include "bkheal.listenAddress" .root) "::" }}[$(POD_IP)]{{ else }}$(POD_IP){{ end }} --conf spark.kubernetes.driver.pod.name=$(POD_NAME) pyspark-shell
{{- end }}
{{- end }}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* How bookies are called, for commands that people run in a pod (`kubectl exec`): the process has it from its file. */}}
{{- define "bkheal.clientEnv" -}}
{{- range $key, $value := include "bkheal.clientSettings" (dict "root" . "prefix" "") | fromJson }}
- name: BKHEAL_{{ upper $key }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "bkheal.envFrom" -}}
{{- with .values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "bkheal.mounts" -}}
- {name: config, mountPath: {{ include "bkheal.paths.config" .root }}, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .spark }}
- {name: spark-conf, mountPath: /etc/bkheal-spark, readOnly: true}
- {name: spark-local, mountPath: /var/lib/bkheal/spark}
- {name: reports, mountPath: {{ include "bkheal.paths.reports" .root }}}
{{- end }}
{{- include "bkheal.zookeeperMounts" .root }}
{{- if not (has .component (list "bookie" "exporter")) }}
{{- include "bkheal.clientMounts" .root }}
{{- end }}
{{- if .spark }}
{{- include "bkheal.inventoryMounts" .root }}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "bkheal.volumes" -}}
- name: config
  configMap:
    name: {{ include "bkheal.fullname" .root }}-config
    items:
      - {key: {{ .config }}.toml, path: bkheal.toml}
      {{- if and .root.Values.placement.topology (ne .component "bookie") }}
      - {key: topology.json, path: topology.json}
      {{- end }}
- name: tmp
  emptyDir: {}
{{- if .spark }}
- name: spark-conf
  configMap:
    name: {{ include "bkheal.fullname" .root }}-spark
- name: spark-local
  emptyDir: {}
{{ include "bkheal.reportsVolume" .root }}
{{- end }}
{{- include "bkheal.zookeeperVolumes" .root }}
{{- if not (has .component (list "bookie" "exporter")) }}
{{- include "bkheal.clientVolumes" .root }}
{{- end }}
{{- if .spark }}
{{- include "bkheal.inventoryVolumes" .root }}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Certificate and password for calls to bookies: of replicators, audits and the executors of audits. */}}
{{- define "bkheal.clientMounts" -}}
{{- if .Values.bookkeeper.clientTls.existingSecret }}
- {name: client-tls, mountPath: {{ include "bkheal.paths.clientTls" . }}, readOnly: true}
{{- end }}
{{- if .Values.bookkeeper.clientSasl.existingSecret }}
- {name: client-sasl, mountPath: {{ include "bkheal.paths.clientSasl" . }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bkheal.clientVolumes" -}}
{{- with .Values.bookkeeper.clientTls }}
{{- if .existingSecret }}
- name: client-tls
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .caKey }}, path: ca.crt}
      - {key: {{ .certKey }}, path: tls.crt}
      - {key: {{ .keyKey }}, path: tls.key}
{{- end }}
{{- end }}
{{- with .Values.bookkeeper.clientSasl }}
{{- if .existingSecret }}
- name: client-sasl
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .passwordKey }}, path: password}
{{- end }}
{{- end }}
{{- end -}}

{{/* The token with which audits and their executors ask bookies for their ledgers. */}}
{{- define "bkheal.inventoryMounts" -}}
{{- if .Values.bookkeeper.inventoryToken.existingSecret }}
- {name: inventory-token, mountPath: {{ include "bkheal.paths.inventoryToken" . }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bkheal.inventoryVolumes" -}}
{{- with .Values.bookkeeper.inventoryToken }}
{{- if .existingSecret }}
- name: inventory-token
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .tokenKey }}, path: token}
{{- end }}
{{- end }}
{{- end -}}

{{- define "bkheal.reportsVolume" -}}
- name: reports
{{- if .Values.reports.persistence.enabled }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-reports" (include "bkheal.fullname" .)) .Values.reports.persistence.existingClaim }}
{{- else }}
  emptyDir: {}
{{- end }}
{{- end -}}

{{/* Probes on the port named http: (dict "probes" … "scheme" "HTTP" | "HTTPS" | "TCP"). */}}
{{- define "bkheal.probes" -}}
{{- $paths := dict "startup" "/livez" "liveness" "/livez" "readiness" "/readyz" }}
{{- $scheme := default "HTTP" .scheme }}
{{- range $kind := list "startup" "liveness" "readiness" }}
{{ $kind }}Probe:
  {{- if eq $scheme "TCP" }}
  tcpSocket: {port: http}
  {{- else }}
  httpGet: {path: {{ get $paths $kind }}, port: http, scheme: {{ $scheme }}}
  {{- end }}
  {{- toYaml (get $.probes $kind) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Makes the cluster's root unless it is there. Of several at once one succeeds, and the others then find it. As their
components, all wait for ZooKeeper, except for Jobs. */}}
{{- define "bkheal.initContainers" -}}
{{- $init := .root.Values.bookkeeper.init.enabled }}
{{- if or $init .values.initContainers }}
initContainers:
  {{- if $init }}
  - name: cluster-init
    {{- include "bkheal.container" .root | nindent 4 }}
    args: [cluster, init, --if-absent{{ if ne .component "audit" }}, --wait{{ end }}]
    env:
      {{- include "bkheal.clusterEnv" .root | nindent 6 }}
    resources:
      requests: {cpu: 100m, memory: 128Mi}
      limits: {memory: 512Mi}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- include "bkheal.zookeeperMounts" .root | nindent 6 }}
  {{- end }}
  {{- with .values.initContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Certificate and key of a component's HTTP port, of its `tls` values. */}}
{{- define "bkheal.httpTlsVolume" -}}
{{- if .existingSecret }}
- name: tls
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .certKey }}, path: tls.crt}
      - {key: {{ .keyKey }}, path: tls.key}
      {{- if .clientCaKey }}
      - {key: {{ .clientCaKey }}, path: client-ca.crt}
      {{- end }}
{{- end }}
{{- end -}}
