#!/bin/bash
# What this installation sets differently; don't edit setenv.sh itself.
export JAVA_HOME=/opt/java
export XAP_LOOKUP_GROUPS="market"
export XAP_GSM_OPTIONS="-Xmx256m"
export XAP_GSC_OPTIONS="-Xmx4g -XX:+UseG1GC \
  -Dcom.gs.transport_protocol.lrmi.slow-consumer.enabled=true \
  -Dcom.gs.transport_protocol.lrmi.slow-consumer.throughput=20000
  -Dcom.gs.transport_protocol.lrmi.bind-port=7000-7100"
export EXT_JAVA_OPTIONS='-Dcom.gs.transport_protocol.lrmi.slow-consumer.latency=750 -Dcom.gs.multicast.enabled=false'
export XAP_GSA_OPTIONS="$XAP_GSA_OPTIONS -Dcom.gs.transport_protocol.lrmi.slow-consumer.retries=$TRIES -Dcom.gs.fifo_notify.queue=10000"
if [ -f local.sh ]; then
. local.sh
fi
$JAVA_HOME/bin/java -Dcom.gs.transport_protocol.lrmi.slow-consumer.retries=5 -Dcom.gs.transport_protocol.lrmi.slow-consumer.nap=1 com.gigaspaces.start.SystemBoot
