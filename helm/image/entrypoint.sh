#!/bin/sh
# Starts what the arguments say: `bkheal ARGUMENTS`, or a Spark executor when Spark on Kubernetes passes `executor`.
#
# Spark gives an executor its options as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, and the rest in variables.
set -eu

if [ "${1:-}" != executor ]; then
  exec bkheal "$@"
fi

jars=$(python -c 'import importlib.util, os
print(os.path.join(os.path.dirname(importlib.util.find_spec("pyspark").origin), "jars"))')
# Spark mounts its settings in the first directory. SPARK_CLASSPATH is its setting spark.executor.extraClassPath.
classpath="${SPARK_CONF_DIR:-/opt/spark/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$jars/*"

set --
number=0
while option=$(printenv "SPARK_JAVA_OPT_$number"); do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "$classpath" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
