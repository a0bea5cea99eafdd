//! Promise: one operator, as it is shipped, looks after a thousand HostedClusters in little memory.

use crate::hosted::operator_fleet::looked_after;

/// Resident memory with nothing to look after, and with all of them, in KiB.
const IDLE: u64 = 25 * 1024;
const BUSY: u64 = 80 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_hosted_clusters_are_looked_after_in_little_memory_and_without_writes() {
    let [idle, busy] = looked_after("op-thousand", 1000, 50, "20s").await;
    assert!(idle <= IDLE, "{idle} KiB, at most {IDLE}");
    assert!(busy <= BUSY, "{busy} KiB, at most {BUSY}");
}
