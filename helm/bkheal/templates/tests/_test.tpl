{{/* A pod of `helm test`: (dict "root" $ "name" n "driver" bool "command" list). */}}
{{- define "bkheal.testPod" -}}
{{- $of := dict "root" .root "component" "test" "values" dict }}
apiVersion: v1
kind: Pod
metadata:
  {{- include "bkheal.metadata" (merge (dict "name" (printf "%s-test-%s" (include "bkheal.fullname" .root) .name) "annotations" (dict "helm.sh/hook" "test" "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded")) $of) | nindent 2 }}
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 900
  serviceAccountName: {{ if .driver }}{{ include "bkheal.driverServiceAccountName" .root }}{{ else }}{{ include "bkheal.serviceAccountName" .root }}{{ end }}
  automountServiceAccountToken: {{ default false .driver }}
  enableServiceLinks: false
  {{- with include "bkheal.pullSecrets" .root | fromJsonArray }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  containers:
    - name: test
      {{- include "bkheal.container" .root | nindent 6 }}
      command:
        {{- toYaml .command | nindent 8 }}
      workingDir: /tmp
      env:
        {{- include "bkheal.clusterEnv" .root | nindent 8 }}
        - {name: SPARK_LOCAL_DIRS, value: /tmp}
        {{- if .token }}
        {{- with .root.Values.metrics.bearerTokenSecret }}
        {{- if .name }}
        - name: TOKEN
          valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
        {{- end }}
        {{- end }}
        {{- end }}
      resources:
        {{- toYaml .root.Values.tests.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- include "bkheal.zookeeperMounts" .root | nindent 8 }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- include "bkheal.zookeeperVolumes" .root | nindent 4 }}
{{- end -}}
