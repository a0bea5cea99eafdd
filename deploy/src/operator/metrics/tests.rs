use serde_json::json;

use super::*;
use crate::operator::api;

fn object(name: &str, status: serde_json::Value) -> Arc<DynamicObject> {
    let object = DynamicObject::new(name, &api::secret_encryption()).within("clusters-a");
    Arc::new(object.data(json!({"spec": {}, "status": status})))
}

fn rotating() -> serde_json::Value {
    json!({
        "rotation": {"stage": "Migrating", "startedTime": "2026-01-02T03:04:05Z"},
        "conditions": [{
            "type": "KMSKeyAccessible", "status": "False", "reason": "Denied",
            "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z",
        }],
        "replicas": [{"name": "a", "healthy": true}, {"name": "b", "healthy": false}],
    })
}

#[test]
fn what_the_cached_objects_say_is_told_under_both_names() {
    let text = Metrics::default().text(&[object("main", rotating())]);
    for line in [
        r#"sidekey_operator_rotation_state{namespace="clusters-a",name="main",state="Migrating"} 1"#,
        r#"hypershift_encryption_migration_state{namespace="clusters-a",name="main",state="Migrating"} 1"#,
        r#"sidekey_operator_condition{namespace="clusters-a",name="main",type="KMSKeyAccessible",status="False"} 1"#,
        r#"sidekey_operator_replicas{namespace="clusters-a",name="main",healthy="false"} 1"#,
        "sidekey_operator_control_planes 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    assert!(text.contains("hypershift_encryption_migration_duration_seconds{"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn the_last_rotation_counts_when_none_is_under_way() {
    let turn = |id| json!({"id": id, "vendor": "aws", "fingerprint": "00000000"});
    let status = json!({"history": [{
        "from": turn(1), "to": turn(2), "state": "Completed",
        "startedTime": "2026-01-02T03:00:00Z", "completionTime": "2026-01-02T03:01:30Z",
    }]});
    let text = Metrics::default().text(&[object("main", status)]);
    assert!(text.contains("state=\"Completed\"} 1\n"), "{text}");
    let took = r#"migration_duration_seconds{namespace="clusters-a",name="main"} 90"#;
    assert!(text.contains(took), "{text}");
}

#[test]
fn nothing_is_left_of_an_object_that_is_gone() {
    let metrics = Metrics::default();
    metrics.job_failed("clusters-a", "main", "migrate");
    metrics.job_failed("clusters-a", "main", "migrate");
    metrics.job_failed("clusters-a", "other", "census");
    let text = metrics.text(&[object("main", json!({})), object("other", json!({}))]);
    let failed = r#"{namespace="clusters-a",name="main"} 2"#;
    let failed = format!("hypershift_encryption_migration_failures_total{failed}");
    assert!(text.contains(&failed), "{text}");
    assert!(text.contains(r#"name="other",task="census"} 1"#), "{text}");
    assert!(!metrics.text(&[object("other", json!({}))]).contains("main"));
    // It has come back under the same name, and begins anew.
    assert!(!metrics.text(&[object("main", json!({}))]).contains("task=\"migrate\""));
}

#[test]
fn a_status_that_cannot_be_read_costs_no_other_object() {
    let text =
        Metrics::default().text(&[object("bad", json!({"keys": 7})), object("ok", rotating())]);
    assert!(text.contains("sidekey_operator_control_planes 2"), "{text}");
    assert!(text.contains("name=\"ok\",state=\"Migrating\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn passes_are_counted_by_kind_and_result_and_none_is_left_hanging() {
    let metrics = Metrics::default();
    let mut pass = metrics.waiting(Kind::HostedCluster);
    let dropped = metrics.waiting(Kind::HostedCluster);
    assert!(metrics.text(&[]).contains("sidekey_operator_queue{kind=\"HostedCluster\"} 2"));
    drop(dropped);
    pass.start();
    tokio::time::advance(Duration::from_millis(300)).await;
    assert!(metrics.text(&[]).contains("reconciles_active{kind=\"HostedCluster\"} 1"));
    pass.end(false);
    let text = metrics.text(&[]);
    for line in [
        r#"sidekey_operator_queue{kind="HostedCluster"} 0"#,
        r#"sidekey_operator_reconciles_active{kind="HostedCluster"} 0"#,
        r#"sidekey_operator_reconciles_total{kind="HostedCluster",result="error"} 1"#,
        r#"sidekey_operator_reconcile_errors_total{kind="HostedCluster"} 1"#,
        r#"sidekey_operator_reconcile_errors_total{kind="SecretEncryption"} 0"#,
        r#"sidekey_operator_reconcile_duration_seconds_bucket{kind="HostedCluster",le="0.1"} 0"#,
        r#"sidekey_operator_reconcile_duration_seconds_bucket{kind="HostedCluster",le="0.5"} 1"#,
        r#"sidekey_operator_reconcile_duration_seconds_bucket{kind="HostedCluster",le="+Inf"} 1"#,
        r#"sidekey_operator_reconcile_duration_seconds_sum{kind="HostedCluster"} 0.3"#,
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}

#[test]
fn labels_cannot_break_a_line() {
    let mut text = Text::default();
    text.sample("x", &[("a", "q\"b\\\n")], 1.0);
    assert_eq!(text.finish(), "x{a=\"q\\\"b\\\\\\n\"} 1\n# EOF\n");
}
