//! All control planes.

use super::Plane;
use super::html::{Mood, Safe, badge, code, document, table};
use crate::operator::reason::ON_THE_WAY;
use crate::operator::status::{Condition, Status};
use crate::rotate::Turn;

/// The page; `all`: there are no others that somebody else may see.
pub(super) fn render(planes: &[Plane], all: bool, synced: bool) -> String {
    let mut body = String::from("<header><h1>Control planes</h1>");
    body.push_str(&summary(planes));
    body.push_str("</header>");
    if !synced {
        body.push_str(
            "<section class=\"note\"><p>The operator has just started: others may be missing.</p></section>",
        );
    }
    let heads = ["Control plane", "Namespace", "Writes with", "Rotation", "Replicas", "Health"];
    let rows: Vec<Vec<String>> = planes.iter().map(row).collect();
    if rows.is_empty() {
        body.push_str("<section><p>There is no SecretEncryption.</p></section>");
    }
    body.push_str(&table("planes", "Every control plane that is looked after", &heads, &rows));
    if !all {
        body.push_str("<p class=\"soft\">Only those that you may see.</p>");
    }
    document("Sidekey: control planes", true, &body)
}

fn summary(planes: &[Plane]) -> String {
    let sick = planes.iter().filter(|plane| health(&plane.status).0 == Mood::Bad).count();
    let rotating = planes.iter().filter(|plane| plane.status.rotation.is_some()).count();
    let mut text = match sick {
        0 => String::new(),
        sick => badge(Mood::Bad, &format!("{sick} with trouble")),
    };
    if rotating > 0 {
        text.push_str(&badge(Mood::Open, &format!("{rotating} in rotation")));
    }
    text
}

fn row(plane: &Plane) -> Vec<String> {
    let Plane { name, status, .. } = plane;
    let path = format!("/planes/{}/{}", name.namespace, name.name);
    let (mood, word) = health(status);
    vec![
        format!("<a href=\"{}\">{}</a>", Safe(&path), Safe(&name.name)),
        Safe(&name.namespace).to_string(),
        writer(status.active_key.as_ref()),
        rotation(status),
        replicas(status),
        badge(mood, word),
    ]
}

/// What new data is written with.
pub(super) fn writer(turn: Option<&Turn>) -> String {
    match turn {
        None => "<span class=\"soft\">not known yet</span>".to_owned(),
        Some(Turn { id: 0, vendor, .. }) if vendor == "identity" => {
            "nothing: it is stored in clear".to_owned()
        }
        Some(Turn { id: 0, vendor, .. }) => format!("cipher {}", Safe(vendor)),
        Some(Turn { id, vendor, fingerprint }) => {
            format!("key {id} of {} {}", Safe(vendor), code(fingerprint))
        }
    }
}

fn rotation(status: &Status) -> String {
    let Some(rotation) = &status.rotation else {
        return "<span class=\"soft\">none under way</span>".to_owned();
    };
    let progress = rotation.progress.as_deref();
    let progress = progress.map(|text| format!("<small>{}</small>", Safe(text)));
    format!("{}{}", rotation.stage.label(), progress.unwrap_or_default())
}

fn replicas(status: &Status) -> String {
    let healthy = status.replicas.iter().filter(|replica| replica.healthy).count();
    format!("{healthy} of {} healthy", status.replicas.len())
}

/// Whether a condition is not so yet and comes by itself.
pub(super) fn is_on_the_way(condition: &Condition) -> bool {
    condition.status == "False" && ON_THE_WAY.contains(&condition.reason.as_str())
}

/// How it is as a whole.
pub(super) fn health(status: &Status) -> (Mood, &'static str) {
    let is = |kind: &str, wanted: &str| {
        let mut all = status.conditions.iter();
        all.any(|condition| condition.kind == kind && condition.status == wanted)
    };
    if is("SecretEncryptionHealthy", "False") {
        (Mood::Bad, "not healthy")
    } else if is("KMSPluginDegraded", "True") {
        (Mood::Bad, "degraded")
    } else if status.conditions.iter().any(needs_somebody) {
        (Mood::Bad, "needs attention")
    } else if is("SecretEncryptionHealthy", "True") {
        (Mood::Good, "healthy")
    } else {
        (Mood::Open, "not known")
    }
}

/// What is wanted is not in use, and does not come by itself.
fn needs_somebody(condition: &Condition) -> bool {
    condition.kind == "SecretEncryptionConfigured"
        && condition.status == "False"
        && !is_on_the_way(condition)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(configured: (&str, &str), healthy: &str) -> Status {
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1})
        };
        let conditions = json!([
            condition("SecretEncryptionConfigured", configured.0, configured.1),
            condition("SecretEncryptionHealthy", healthy, "AsExpected"),
        ]);
        serde_json::from_value(json!({"conditions": conditions})).unwrap()
    }

    #[test]
    fn what_comes_by_itself_is_no_trouble_and_what_does_not_is() {
        assert_eq!(health(&status(("True", "AsExpected"), "True")).1, "healthy");
        for reason in ON_THE_WAY {
            assert_eq!(health(&status(("False", reason), "True")).1, "healthy", "{reason}");
        }
        for reason in ["PreflightFailed", "InvalidSpec", "ReferenceMissing", "HeadRefused"] {
            let (mood, word) = health(&status(("False", reason), "True"));
            assert!(mood == Mood::Bad && word == "needs attention", "{reason}: {word}");
        }
        // A replica that does not read or write is worse.
        assert_eq!(health(&status(("False", "InvalidSpec"), "False")).1, "not healthy");
    }
}
