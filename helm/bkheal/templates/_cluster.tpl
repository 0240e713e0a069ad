{{/* Which cluster, and checks that a schema cannot make. */}}

{{- define "bkheal.isK8sClient" -}}
{{- if and (eq .Values.spark.mode "k8s-client") (ne .Values.mode "none") }}true{{ end -}}
{{- end -}}

{{/* The prefix of the Apache Pulsar chart's names, by its own rule. */}}
{{- define "bkheal.pulsarFullname" -}}
{{- $release := .Values.bookkeeper.pulsar.release -}}
{{- if contains "pulsar" $release }}{{ $release }}{{ else }}{{ $release }}-pulsar{{ end -}}
{{- end -}}

{{- define "bkheal.metadataUri" -}}
{{- with .Values.bookkeeper -}}
{{- if .metadataServiceUri -}}
{{- .metadataServiceUri -}}
{{- else if .pulsar.release -}}
{{- printf "zk+hierarchical://%s-zookeeper:%s%s/ledgers" (include "bkheal.pulsarFullname" $) (ternary "2281" "2181" (ne .zookeeper.tls.existingSecret "")) (trimSuffix "/" .pulsar.metadataPrefix) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The path of the ledgers root, which Pulsar's driver appends to the path of its URI; empty if a ConfigMap has the URI. */}}
{{- define "bkheal.ledgersRoot" -}}
{{- $uri := include "bkheal.metadataUri" . | trimSuffix "/" -}}
{{- if hasPrefix "metadata-store:" $uri -}}
{{- regexReplaceAll "^metadata-store:zk:[^/]*" $uri "" }}/ledgers
{{- else -}}
{{- regexReplaceAll "^[^/]*//[^/]*" $uri "" -}}
{{- end -}}
{{- end -}}

{{/* Whether anything in this release calls bookies. */}}
{{- define "bkheal.callsBookies" -}}
{{- $kinds := .Values.cron.kinds -}}
{{- $hasInventory := and $kinds.everything.enabled (dig "with_inventory" true .Values.config.audit) -}}
{{- if or .Values.replicator.enabled (eq .Values.mode "service") (and (eq .Values.mode "cron") (or $kinds.replicas.enabled $hasInventory)) }}true{{ end -}}
{{- end -}}

{{/* Whether auditors answer callers without a token. */}}
{{- define "bkheal.isReadByAll" -}}
{{- $isOpen := dig "allow_anonymous_read" .Values.auditor.auth.anonymousRead .Values.config.auditor -}}
{{- if or $isOpen (kindIs "invalid" $isOpen) }}true{{ end -}}
{{- end -}}

{{/* Milliseconds of a duration such as 60s. */}}
{{- define "bkheal.milliseconds" -}}
{{- mul (regexFind "^[0-9]+" .) (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{- define "bkheal.check" -}}
{{- $b := .Values.bookkeeper -}}
{{- $named := 0 -}}
{{- range list $b.metadataServiceUri $b.existingConfigMap.name $b.pulsar.release -}}
{{- if . }}{{ $named = add $named 1 }}{{ end -}}
{{- end -}}
{{- if ne (int $named) 1 -}}
{{- fail "name the cluster by exactly one of bookkeeper.metadataServiceUri, bookkeeper.existingConfigMap.name and bookkeeper.pulsar.release" -}}
{{- end -}}
{{- include "bkheal.checkLabels" (dict "option" "commonLabels" "labels" .Values.commonLabels) -}}
{{- range $part := list "auditor" "cron" "exporter" "replicator" "bookies" -}}
{{- include "bkheal.checkLabels" (dict "option" (printf "%s.podLabels" $part) "labels" (get $.Values $part).podLabels) -}}
{{- end -}}
{{- if and .Values.bookies.enabled $b.pulsar.release (not .Values.bookies.apachePort) -}}
{{- fail "bookies.enabled: these bookies cannot join a Pulsar cluster, whose clients do not speak bookie-grpc; set bookies.apachePort, or give them a root of their own" -}}
{{- end -}}
{{- if and .Values.bookies.enabled (eq (int .Values.bookies.ports.bookie) (int .Values.bookies.ports.http)) -}}
{{- fail "bookies.ports.bookie and bookies.ports.http are the same" -}}
{{- end -}}
{{- if and .Values.bookies.enabled (has (int .Values.bookies.apachePort) (list (int .Values.bookies.ports.bookie) (int .Values.bookies.ports.http))) -}}
{{- fail "bookies.apachePort is a port of its own: it cannot be bookies.ports.bookie or bookies.ports.http" -}}
{{- end -}}
{{- if and .Values.bookies.enabled .Values.bookies.tls.enabled (not .Values.bookies.tls.existingSecret) -}}
{{- fail "bookies.tls.enabled needs bookies.tls.existingSecret" -}}
{{- end -}}
{{- if and .Values.bookies.enabled .Values.bookies.tls.existingSecret (not .Values.bookies.tls.enabled) -}}
{{- fail "bookies.tls.existingSecret without bookies.tls.enabled: bookies would not speak TLS" -}}
{{- end -}}
{{- if and .Values.bookies.enabled (include "bkheal.callsBookies" .) (ne .Values.bookies.tls.enabled (ne $b.clientTls.existingSecret "")) -}}
{{- fail "bookies.tls.enabled and bookkeeper.clientTls.existingSecret go together: replicators and audits call these bookies" -}}
{{- end -}}
{{- if ne (ne $b.zookeeper.login.username "") (ne $b.zookeeper.login.existingSecret "") -}}
{{- fail "bookkeeper.zookeeper.login.username and bookkeeper.zookeeper.login.existingSecret go together: the Secret holds that user's password" -}}
{{- end -}}
{{- if and (eq $b.zookeeper.acl "creator") (not $b.zookeeper.login.existingSecret) (not $b.zookeeper.tls.existingSecret) -}}
{{- fail "bookkeeper.zookeeper.acl=creator needs an identity: bookkeeper.zookeeper.login or bookkeeper.zookeeper.tls" -}}
{{- end -}}
{{- $ledgers := include "bkheal.ledgersRoot" . -}}
{{- $state := $b.zookeeper.stateRoot -}}
{{- if and $ledgers (or (hasPrefix (print $ledgers "/") (print $state "/")) (hasPrefix (print $state "/") (print $ledgers "/"))) -}}
{{- fail (printf "bookkeeper.zookeeper.stateRoot=%s and the ledgers root %s must not contain each other" $state $ledgers) -}}
{{- end -}}
{{- if ne (ne $b.clientSasl.username "") (ne $b.clientSasl.existingSecret "") -}}
{{- fail "bookkeeper.clientSasl.username and bookkeeper.clientSasl.existingSecret go together: the Secret holds that user's password" -}}
{{- end -}}
{{- if and .Values.bookkeeper.clientSasl.existingSecret (eq .Values.bookkeeper.clientSasl.mechanism "PLAIN") (not .Values.bookkeeper.clientTls.existingSecret) -}}
{{- fail "bookkeeper.clientSasl.mechanism=PLAIN sends the password as it is: it needs bookkeeper.clientTls.existingSecret" -}}
{{- end -}}
{{- if and $b.inventoryToken.existingSecret (not $b.clientTls.existingSecret) -}}
{{- fail "bookkeeper.inventoryToken is sent to bookies with TLS only: it needs bookkeeper.clientTls.existingSecret" -}}
{{- end -}}
{{- if and (include "bkheal.isK8sClient" .) (not .Values.reports.persistence.enabled) -}}
{{- fail "spark.mode=k8s-client: executors write the report, so it needs a volume that all pods share; set reports.persistence.enabled" -}}
{{- end -}}
{{- if and (include "bkheal.isK8sClient" .) .Values.config.auditor.ui_allow_anonymous -}}
{{- fail "config.auditor.ui_allow_anonymous is for spark.mode=local: with k8s-client the Spark UI listens on all addresses, so anybody there could start runs" -}}
{{- end -}}
{{- if and .Values.auditor.ui.authProxy.port .Values.config.auditor.ui_allow_anonymous -}}
{{- fail "auditor.ui.authProxy.port: a proxy names the users, so config.auditor.ui_allow_anonymous would let others in" -}}
{{- end -}}
{{- if and (eq .Values.mode "service") .Values.auditor.ui.authProxy.port (not .Values.auditor.sidecars) -}}
{{- fail "auditor.ui.authProxy.port needs the container of the proxy in auditor.sidecars" -}}
{{- end -}}
{{- if and (eq .Values.mode "service") (ge (int .Values.auditor.preStopSleepSeconds) (int (default 30 .Values.auditor.terminationGracePeriodSeconds))) -}}
{{- fail "auditor.preStopSleepSeconds is part of auditor.terminationGracePeriodSeconds: auditors would be killed before they hand over" -}}
{{- end -}}
{{- if eq .Values.mode "service" -}}
{{- $ports := list -}}
{{- range values .Values.auditor.ports }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- with .Values.auditor.ui.authProxy.port }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- if include "bkheal.isK8sClient" . }}{{ $ports = append $ports (int .Values.spark.k8s.driverPort) }}{{ $ports = append $ports (int .Values.spark.k8s.blockManagerPort) }}{{ end -}}
{{- if ne (len (uniq $ports)) (len $ports) -}}
{{- fail "two of auditor.ports, auditor.ui.authProxy.port and, with executors, spark.k8s.driverPort and spark.k8s.blockManagerPort are the same: they are ports of one pod" -}}
{{- end -}}
{{- end -}}
{{- $isScraped := or .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled .Values.metrics.vmPodScrape.enabled -}}
{{- with .Values.metrics.bearerTokenSecret -}}
{{- if ne (empty .name) (empty .key) -}}
{{- fail "metrics.bearerTokenSecret.name and metrics.bearerTokenSecret.key go together" -}}
{{- end -}}
{{- if and $isScraped (eq $.Values.mode "service") (not (include "bkheal.isReadByAll" $)) (not .name) -}}
{{- fail "auditor.auth.anonymousRead=false: monitors need metrics.bearerTokenSecret, or the auditors refuse them" -}}
{{- end -}}
{{- end -}}
{{- range $kind := list "serviceMonitor" "podMonitor" -}}
{{- with get $.Values.metrics $kind -}}
{{- if and .enabled .scrapeTimeout .interval (gt (include "bkheal.milliseconds" .scrapeTimeout | int64) (include "bkheal.milliseconds" .interval | int64)) -}}
{{- fail (printf "metrics.%s.scrapeTimeout is longer than the interval, so Prometheus' operator would ignore the monitor" $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $component := list "auditor" "exporter" -}}
{{- $tls := (get $.Values $component).tls -}}
{{- $runs := ternary (eq $.Values.mode "service") (ne (include "bkheal.hasExporter" $) "") (eq $component "auditor") -}}
{{- if and $isScraped $runs $tls.existingSecret $tls.clientCaKey (not $.Values.metrics.clientTls.existingSecret) -}}
{{- fail (printf "%s.tls.clientCaKey asks scrapers for a certificate: monitors need metrics.clientTls.existingSecret" $component) -}}
{{- end -}}
{{- end -}}
{{- with .Values.spark.executor -}}
{{- if and .dynamicAllocation.enabled (or (gt (int .instances) (int .dynamicAllocation.maxInstances)) (gt (int .dynamicAllocation.minInstances) (int .instances))) -}}
{{- fail "spark.executor.instances, with which a run begins, is not between dynamicAllocation.minInstances and maxInstances" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.enabled needs ingress.hosts" -}}
{{- end -}}
{{- if and (eq .Values.mode "service") (not (include "bkheal.hasLeaderUi" .)) -}}
{{- $paths := ternary .Values.httpRoute.paths list .Values.httpRoute.enabled -}}
{{- if .Values.ingress.enabled }}{{ range .Values.ingress.hosts }}{{ $paths = concat $paths .paths }}{{ end }}{{ end -}}
{{- range $paths -}}
{{- if eq (default "http" .port) "ui" -}}
{{- fail (printf "the path %s leads to the Spark UI, which no Service reaches: auditor.ui.enabled is false, or config.auditor.ui_allow_anonymous is set" .path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs: the Gateways that serve it" -}}
{{- end -}}
{{- if and .Values.spark.eventLog.enabled (not .Values.spark.eventLog.dir) -}}
{{- fail "spark.eventLog.enabled needs spark.eventLog.dir" -}}
{{- end -}}
{{- with .Values.replicator.autoscaling -}}
{{- if and $.Values.replicator.enabled .enabled -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail "replicator.autoscaling: minReplicas is greater than maxReplicas" -}}
{{- end -}}
{{- if and (eq .type "keda") (eq $.Values.mode "none") (not $.Values.bookkeeper.clusterName) (not .query) -}}
{{- fail "replicator.autoscaling.type=keda with mode=none needs bookkeeper.clusterName or replicator.autoscaling.query: the backlog is shown by another release" -}}
{{- end -}}
{{- if and (eq .type "keda") (not .prometheusAddress) -}}
{{- fail "replicator.autoscaling.type=keda needs replicator.autoscaling.prometheusAddress" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
