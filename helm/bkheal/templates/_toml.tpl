{{/* Configuration files. Keys that users give win; values are texts, numbers, booleans or lists, for which TOML and
JSON are the same. TOML has no null: a value without one, as after `helm upgrade --reuse-values` from an older chart, leaves
the option at its default. */}}

{{- define "bkheal.toml" -}}
{{- range $key := keys . | sortAlpha }}
{{- $value := get $ $key }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ if kindIs "float64" $value }}{{ include "bkheal.number" $value }}{{ else }}{{ $value | toJson }}{{ end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* These defaults are for `helm upgrade --reuse-values` from a chart without such a value. */}}
{{- define "bkheal.clusterDomain" }}{{ default "cluster.local" .Values.clusterDomain }}{{ end -}}
{{- define "bkheal.listenAddress" }}{{ default "0.0.0.0" .Values.listenAddress }}{{ end -}}

{{- define "bkheal.paths.config" }}/etc/bkheal{{ end -}}
{{- define "bkheal.paths.reports" }}/var/lib/bkheal/reports{{ end -}}
{{- define "bkheal.paths.clientTls" }}/etc/bkheal-client-tls{{ end -}}
{{- define "bkheal.paths.zookeeperTls" }}/etc/bkheal-zookeeper-tls{{ end -}}
{{- define "bkheal.paths.zookeeperLogin" }}/etc/bkheal-zookeeper-login{{ end -}}
{{- define "bkheal.paths.clientSasl" }}/etc/bkheal-client-sasl{{ end -}}
{{- define "bkheal.paths.inventoryToken" }}/etc/bkheal-inventory-token{{ end -}}

{{/* Options by table that a process takes over from a changed file while it runs (docs/configuration.md, "live"). */}}
{{- define "bkheal.live" -}}
{{- dict "auditor" (list "requests_per_second") "replicator" (list "bytes_per_second") | toJson -}}
{{- end -}}

{{/* What a process reads when it starts: its file without those; of (dict "root" $ "config" "auditor"). */}}
{{- define "bkheal.readAtStart" -}}
{{- $text := include (printf "bkheal.config.%s" .config) .root -}}
{{- range get (include "bkheal.live" . | fromJson) .config | default list -}}
{{- $text = regexReplaceAll (printf "\n%s = [^\n]*" .) $text "" -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{- define "bkheal.sparkMaster" -}}
{{- if include "bkheal.isK8sClient" . }}k8s://{{ .Values.spark.k8s.apiServer }}{{ else }}local[{{ .Values.spark.localCores }}]{{ end -}}
{{- end -}}

{{/* Sets in .into what .from holds. Sprig's merge would pass over false and 0. */}}
{{- define "bkheal.setAll" -}}
{{- range $key, $value := .from }}{{ $_ := set $.into $key $value }}{{ end -}}
{{- end -}}

{{- define "bkheal.placementSettings" -}}
{{- $p := .Values.placement -}}
{{- $s := dict "min_racks" $p.minRacks "min_zones" $p.minZones "min_regions" $p.minRegions "strict_placement" $p.strict -}}
{{- if $p.topology }}{{ $_ := set $s "topology_file" (printf "%s/topology.json" (include "bkheal.paths.config" .)) }}{{ end -}}
{{- toJson $s -}}
{{- end -}}

{{/* How bookies are called: of (dict "root" $ "prefix" "bookie_"), as processes name these keys differently. */}}
{{- define "bkheal.clientSettings" -}}
{{- $s := dict -}}
{{- if .root.Values.bookkeeper.clientTls.existingSecret -}}
{{- $directory := include "bkheal.paths.clientTls" . -}}
{{- $_ := set $s (printf "%stls_ca" .prefix) (printf "%s/ca.crt" $directory) -}}
{{- $_ := set $s (printf "%stls_cert" .prefix) (printf "%s/tls.crt" $directory) -}}
{{- $_ := set $s (printf "%stls_key" .prefix) (printf "%s/tls.key" $directory) -}}
{{- end -}}
{{- with .root.Values.bookkeeper.clientSasl -}}
{{- if .existingSecret -}}
{{- $_ := set $s (printf "%ssasl_username" $.prefix) .username -}}
{{- $_ := set $s (printf "%ssasl_password_file" $.prefix) (printf "%s/password" (include "bkheal.paths.clientSasl" $)) -}}
{{- $_ := set $s (printf "%ssasl_mechanism" $.prefix) .mechanism -}}
{{- end -}}
{{- end -}}
{{- toJson $s -}}
{{- end -}}

{{/* The token with which audits ask bookies for their ledgers. */}}
{{- define "bkheal.inventorySettings" -}}
{{- $s := dict -}}
{{- if .Values.bookkeeper.inventoryToken.existingSecret -}}
{{- $_ := set $s "inventory_token_file" (printf "%s/token" (include "bkheal.paths.inventoryToken" .)) -}}
{{- end -}}
{{- toJson $s -}}
{{- end -}}

{{- define "bkheal.config.auditor" -}}
{{- $a := .Values.auditor -}}
{{- $s := dict
  "report_dir" (include "bkheal.paths.reports" .)
  "bookies_schedule" $a.schedules.bookies
  "placement_schedule" $a.schedules.placement
  "replicas_schedule" $a.schedules.replicas
  "references_schedule" $a.schedules.references
  "everything_schedule" $a.schedules.everything
  "schedule_jitter_s" $a.scheduleJitterSeconds
  "misfire_grace_s" $a.misfireGraceSeconds
  "missing_share_max" $a.missingShareMax
  "session_timeout_s" $a.sessionTimeoutSeconds
  "backlog_interval_s" $a.backlogIntervalSeconds
  "requests_per_second" $a.requestsPerSecond
  "reports_kept" $a.reportsKept
  "runs_kept" $a.runsKept
  "http_host" (include "bkheal.listenAddress" .)
  "http_port" $a.ports.http
  "grpc_host" (include "bkheal.listenAddress" .)
  "grpc_port" $a.ports.grpc
  "ui_host" (include "bkheal.listenAddress" .)
  "ui_port" $a.ports.ui
  "leader_http_port" $a.ports.leaderHttp
  "leader_grpc_port" $a.ports.leaderGrpc
  "ui_enabled" $a.ui.enabled
  "ui_trigger_enabled" $a.ui.triggerEnabled
  "ui_proxy_base" $a.ui.proxyBase
  "public_url" (include "bkheal.publicUrl" .)
  "allow_anonymous_read" $a.auth.anonymousRead
  "spark_master" (include "bkheal.sparkMaster" .)
  "driver_memory" $a.driverMemory
  "compat_metrics" .Values.metrics.bookkeeperCompat -}}
{{- with .Values.reports.store }}{{ $_ := set $s "report_store" . }}{{ end -}}
{{- with .Values.reports.image }}{{ $_ := set $s "image_dir" . }}{{ end -}}
{{- with $a.ui.authProxy -}}
{{- if .port -}}
{{- $_ := set $s "ui_host" "127.0.0.1" -}}
{{- $_ := set $s "ui_user_header" .userHeader -}}
{{- $_ := set $s "ui_trusted_proxies" "127.0.0.1,::1" -}}
{{- $_ := set $s "ui_proxy_port" .port -}}
{{- end -}}
{{- end -}}
{{- if include "bkheal.hasLeaderUi" . }}{{ $_ := set $s "leader_ui_port" $a.ports.leaderUi }}{{ end -}}
{{- if $a.auth.tokensSecret.name }}{{ $_ := set $s "tokens_file" "/etc/bkheal-tokens/tokens" }}{{ end -}}
{{- if $a.tls.existingSecret -}}
{{- $_ := set $s "tls_cert" "/etc/bkheal-tls/tls.crt" -}}
{{- $_ := set $s "tls_key" "/etc/bkheal-tls/tls.key" -}}
{{- if $a.tls.clientCaKey }}{{ $_ := set $s "tls_client_ca" "/etc/bkheal-tls/client-ca.crt" }}{{ end -}}
{{- end -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.clientSettings" (dict "root" . "prefix" "bookie_") | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.inventorySettings" . | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.placementSettings" . | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" .Values.config.auditor) -}}
[auditor]
{{- include "bkheal.toml" $s }}
{{- end -}}

{{- define "bkheal.config.audit" -}}
{{- $s := dict
  "report_dir" (include "bkheal.paths.reports" .)
  "master" (include "bkheal.sparkMaster" .)
  "fail_on" .Values.cron.failOn
  "dry_run" .Values.cron.dryRun
  "missing_share_max" .Values.cron.missingShareMax
  "reports_kept" .Values.cron.reportsKept -}}
{{- with .Values.reports.store }}{{ $_ := set $s "report_store" . }}{{ end -}}
{{- with .Values.reports.image }}{{ $_ := set $s "image_dir" . }}{{ end -}}
{{- with .Values.cron.ports.http -}}
{{- $_ := set $s "http_host" (include "bkheal.listenAddress" $) -}}
{{- $_ := set $s "http_port" . -}}
{{- end -}}
{{- with .Values.metrics.pushgateway.url }}{{ $_ := set $s "pushgateway" . }}{{ end -}}
{{- with .Values.bookkeeper.clusterName }}{{ $_ := set $s "cluster_name" . }}{{ end -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.clientSettings" (dict "root" . "prefix" "") | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.inventorySettings" . | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.placementSettings" . | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" .Values.config.audit) -}}
[audit.run]
{{- include "bkheal.toml" $s }}
{{- end -}}

{{- define "bkheal.config.exporter" -}}
{{- $e := .Values.exporter -}}
{{- $s := dict
  "backlog_interval_s" $e.backlogIntervalSeconds
  "missing_share_max" (ternary .Values.cron.missingShareMax .Values.auditor.missingShareMax (eq .Values.mode "cron"))
  "http_host" (include "bkheal.listenAddress" .)
  "http_port" $e.ports.http -}}
{{- if $e.tls.existingSecret -}}
{{- $_ := set $s "http_tls_cert" "/etc/bkheal-tls/tls.crt" -}}
{{- $_ := set $s "http_tls_key" "/etc/bkheal-tls/tls.key" -}}
{{- if $e.tls.clientCaKey }}{{ $_ := set $s "http_tls_client_ca" "/etc/bkheal-tls/client-ca.crt" }}{{ end -}}
{{- end -}}
{{- if .Values.placement.topology }}{{ $_ := set $s "topology_file" (printf "%s/topology.json" (include "bkheal.paths.config" .)) }}{{ end -}}
{{- /* What an exporter shows as held back depends on these, so they are those of the audits. */ -}}
{{- $audits := ternary .Values.config.audit .Values.config.auditor (eq .Values.mode "cron") -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (pick $audits "missing_share_max" "critical_delay_s" "rack_outage_delay_s" "flapping_delay_s")) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" .Values.config.exporter) -}}
[exporter]
{{- include "bkheal.toml" $s }}
{{- end -}}

{{- define "bkheal.replicatorsMax" -}}
{{- with .Values.replicator }}{{ if .autoscaling.enabled }}{{ .autoscaling.maxReplicas }}{{ else }}{{ .replicas }}{{ end }}{{ end -}}
{{- end -}}

{{/* Bytes per second of each replicator: its own limit, or its share of the limit of all, whichever is less. */}}
{{- define "bkheal.bytesPerSecond" -}}
{{- $own := int64 .Values.replicator.throttle.bytesPerSecond -}}
{{- $all := int64 .Values.replicator.throttle.clusterBytesPerSecond -}}
{{- $share := 0 -}}
{{- if $all }}{{ $share = max 1 (div $all (max 1 (include "bkheal.replicatorsMax" . | int64))) }}{{ end -}}
{{- if and $own $share }}{{ min $own $share }}{{ else }}{{ max $own $share }}{{ end -}}
{{- end -}}

{{- define "bkheal.config.replicator" -}}
{{- $r := .Values.replicator -}}
{{- $s := dict
  "ledgers_in_flight" $r.ledgersInFlight
  "bytes_per_second" (include "bkheal.bytesPerSecond" . | int64)
  "open_ledger_grace" $r.openLedgerGraceSeconds
  "http_host" (include "bkheal.listenAddress" .)
  "http_port" $r.ports.http
  "compat_metrics" .Values.metrics.bookkeeperCompat -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.clientSettings" (dict "root" . "prefix" "") | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" (include "bkheal.placementSettings" . | fromJson)) -}}
{{- include "bkheal.setAll" (dict "into" $s "from" .Values.config.replicator) -}}
[replicator]
{{- include "bkheal.toml" $s }}
{{- end -}}

{{/*
The volumes of a bookie for `kind`, journal or ledgers, separated by spaces. The first one has the name that it has
alone, so the default names never change.
*/}}
{{- define "bkheal.bookieVolumes" -}}
{{- $kind := .kind -}}
{{- $names := list $kind -}}
{{- range $number := untilStep 2 (add1 (int (get .root.Values.bookies.persistence $kind).count) | int) 1 -}}
{{- $names = append $names (printf "%s-%d" $kind $number) -}}
{{- end -}}
{{- join " " $names -}}
{{- end -}}

{{/* The directories on these volumes, separated by commas. */}}
{{- define "bkheal.bookieDirectories" -}}
{{- $paths := list -}}
{{- range splitList " " (include "bkheal.bookieVolumes" .) -}}
{{- $paths = append $paths (printf "/var/lib/bkheal/%s/data" .) -}}
{{- end -}}
{{- join "," $paths -}}
{{- end -}}

{{- define "bkheal.config.bookie" -}}
{{- $b := .Values.bookies -}}
{{- $s := dict
  "journal_dir" (include "bkheal.bookieDirectories" (dict "root" . "kind" "journal"))
  "ledger_dir" (include "bkheal.bookieDirectories" (dict "root" . "kind" "ledgers"))
  "host" (include "bkheal.listenAddress" .)
  "port" $b.ports.bookie
  "http_host" (include "bkheal.listenAddress" .)
  "http_port" $b.ports.http
  "read_only_below_bytes" $b.readOnlyBelowBytes
  "collect_interval" $b.collectIntervalSeconds -}}
{{- with $b.apachePort }}{{ $_ := set $s "apache_port" . }}{{ end -}}
{{- if $b.tls.enabled -}}
{{- $_ := set $s "tls_ca" "/etc/bkheal-tls/ca.crt" -}}
{{- $_ := set $s "tls_cert" "/etc/bkheal-tls/tls.crt" -}}
{{- $_ := set $s "tls_key" "/etc/bkheal-tls/tls.key" -}}
{{- else -}}
{{- $_ := set $s "plaintext" true -}}
{{- end -}}
{{- include "bkheal.setAll" (dict "into" $s "from" .Values.config.bookie) -}}
[bookie]
{{- include "bkheal.toml" $s }}
{{- end -}}
