//! A count says nothing of what came after it.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::*;
use crate::operator::run::fake;

/// A count that said yes so long ago, as the API server has it; and what was deleted.
async fn looked_at(age: Duration) -> (Found, Vec<String>) {
    let task = census(Subject::Key(1));
    let mut job = plan(&task).job;
    job["metadata"]["uid"] = "u".into();
    let ended = humantime::format_rfc3339_seconds(SystemTime::now() - age).to_string();
    let mut own = ended_with(&ended);
    own["name"] = "sidekey".into();
    let pod = json!({
        "metadata": {"name": "p"}, "status": {"containerStatuses": [own]},
    });
    let deleted = Arc::new(Mutex::new(Vec::new()));
    let seen = deleted.clone();
    let client = fake::client(move |method, path, _| match method {
        "DELETE" => {
            seen.lock().unwrap().push(path.to_owned());
            (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        _ if path.ends_with("/pods") => {
            (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}))
        }
        _ => (200, job.clone()),
    });
    let found = look(&client, &encryption(), &task).await.unwrap();
    let deleted = deleted.lock().unwrap().clone();
    (found, deleted)
}

fn ended_with(time: &str) -> Value {
    let mut own = ended(0, json!({"mayDrop": "yes", "counted": 40}));
    own["state"]["terminated"]["finishedAt"] = time.into();
    own
}

#[tokio::test]
async fn a_yes_of_long_ago_is_not_believed_and_counted_anew() {
    let (found, deleted) = looked_at(Duration::from_secs(10)).await;
    assert!(matches!(found, Found::Succeeded(_)), "{found:?}");
    assert!(deleted.is_empty());
    let (found, deleted) = looked_at(Duration::from_secs(400)).await;
    assert_eq!(found, Found::Absent);
    assert_eq!(deleted.len(), 1, "{deleted:?}");
    assert!(deleted[0].ends_with("/jobs/sidekey-census-key-1"), "{deleted:?}");
}

#[test]
fn a_yes_that_does_not_say_since_when_is_not_believed() {
    let limit = Duration::from_secs(300);
    let now = SystemTime::now();
    assert!(!verdict::is_fresh(&job(json!({})), None, limit, now));
    let time = |at| humantime::format_rfc3339_seconds(at).to_string();
    let done = |at| job(json!({"completionTime": time(at)}));
    assert!(verdict::is_fresh(&done(now), None, limit, now));
    assert!(verdict::is_fresh(&done(now + limit), None, limit, now), "clocks may differ");
    assert!(!verdict::is_fresh(&done(now - 2 * limit), None, limit, now));
}
