//! Promise: one operator looks after a thousand HostedClusters in at most 80 MiB.

use crate::machine::operator_fleet::looked_after;

#[tokio::test]
async fn a_thousand_hosted_clusters_are_looked_after_in_little_memory_and_without_writes() {
    looked_after("op-thousand", 1000, 50).await;
}
