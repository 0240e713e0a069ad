{{/* Names, labels and the image. CronJob names are limited to 52 characters, so the prefix to 36; see cronName. */}}

{{- define "bkheal.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 36 | trimSuffix "-" -}}
{{- end -}}

{{- define "bkheal.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "bkheal.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 36 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of a CronJob, of (dict "root" $ "suffix" "-audit-bookies"). Only the longest suffixes cut the prefix again. */}}
{{- define "bkheal.cronName" -}}
{{- include "bkheal.fullname" .root | trunc (sub 52 (len .suffix) | int) | trimSuffix "-" }}{{ .suffix }}
{{- end -}}

{{/* Labels that never change: of (dict "root" $ "component" "auditor"). */}}
{{- define "bkheal.selectorLabels" -}}
app.kubernetes.io/name: {{ include "bkheal.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object, each key once: its `extraLabels`, then commonLabels, then those of the chart. */}}
{{- define "bkheal.labels" -}}
{{- $version := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- toYaml (merge (dict) (default (dict) .extraLabels) (default (dict) .root.Values.commonLabels) $version (include "bkheal.ownLabels" . | fromYaml)) -}}
{{- end -}}

{{/* Labels of pods: as above, without the version of the chart, which would restart them for nothing. */}}
{{- define "bkheal.podLabels" -}}
{{- toYaml (merge (dict) (default (dict) .values.podLabels) (default (dict) .root.Values.commonLabels) (include "bkheal.ownLabels" . | fromYaml)) -}}
{{- end -}}

{{- define "bkheal.ownLabels" -}}
{{ include "bkheal.selectorLabels" . }}
app.kubernetes.io/part-of: bkheal
{{- end -}}

{{/* Refuse labels that selectors use: of (dict "option" "commonLabels" "labels" …). */}}
{{- define "bkheal.checkLabels" -}}
{{- range list "name" "instance" "component" -}}
{{- if hasKey (default (dict) $.labels) (printf "app.kubernetes.io/%s" .) -}}
{{- fail (printf "%s: selectors of the chart use the label app.kubernetes.io/%s, so it cannot be replaced" $.option .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The whole metadata of an object: (dict "root" $ "component" c "name" n "annotations" a). */}}
{{- define "bkheal.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "bkheal.labels" . | nindent 2 }}
{{- $annotations := merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "bkheal.image" -}}
{{- $image := .Values.image -}}
{{- $name := $image.repository -}}
{{- with default $image.registry .Values.global.imageRegistry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Names of Secrets with registry credentials, as a JSON list. Charts write them as texts or as {name: …}. */}}
{{- define "bkheal.pullSecrets" -}}
{{- $names := list -}}
{{- range concat (default list .Values.global.imagePullSecrets) .Values.image.pullSecrets -}}
{{- $names = append $names (ternary (get (ternary . dict (kindIs "map" .)) "name") . (kindIs "map" .)) -}}
{{- end -}}
{{- toJson ($names | uniq) -}}
{{- end -}}

{{- define "bkheal.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "bkheal.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "bkheal.driverServiceAccountName" -}}
{{- if .Values.spark.k8s.serviceAccount.create -}}
{{- default (printf "%s-driver" (include "bkheal.fullname" .)) .Values.spark.k8s.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.spark.k8s.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Whole numbers as such: YAML's come as floating point, which prints large ones as 1e+09. */}}
{{- define "bkheal.number" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else if not (kindIs "invalid" .) -}}{{ . }}{{- end -}}
{{- end -}}
