//! One control plane.

use super::Plane;
use super::html::{Mood, Safe, badge, code, document, moment, table};
use super::overview::{health, is_on_the_way, writer};
use crate::operator::status::{Condition, Rotation, Status};
use crate::rotate::{Stage, Turn};

/// Stages of a rotation that goes well.
const STAGES: [Stage; 5] = [
    Stage::Preflight,
    Stage::ReadOnlyDeploy,
    Stage::WritePromote,
    Stage::Migrating,
    Stage::Completed,
];
/// Conditions that are good when they are not so.
const GOOD_IF_FALSE: [&str; 2] = ["KMSPluginDegraded", "KMSKeyRotationInProgress"];

/// The page.
pub(super) fn render(plane: &Plane) -> String {
    let Plane { name, status, generation } = plane;
    let (mood, word) = health(status);
    let mut body = format!(
        "<nav><a href=\"/\">Control planes</a></nav><header><h1>{} <span class=\"soft\">in {}</span>\
         </h1>{}</header>",
        Safe(&name.name),
        Safe(&name.namespace),
        badge(mood, word),
    );
    if status.observed_generation < *generation {
        body.push_str(
            "<section class=\"note\"><p>The last edit has not been looked at yet.</p></section>",
        );
    }
    body.push_str(&now(status));
    body.push_str(&status.rotation.as_ref().map(rotation).unwrap_or_default());
    body.push_str(&keys(status));
    body.push_str(&replicas(status));
    body.push_str(&reports(status));
    body.push_str(&conditions(status));
    body.push_str(&history(status));
    body.push_str(&retired(status));
    document(&format!("Sidekey: {name}"), true, &body)
}

fn now(status: &Status) -> String {
    let none = || "<span class=\"soft\">none</span>".to_owned();
    let mut rows = vec![
        ("Writes with", writer(status.active_key.as_ref())),
        ("Revision", status.revision.map_or_else(none, |number| number.to_string())),
        ("Stored under", status.encrypted_under.as_deref().map_or_else(none, code)),
    ];
    if let Some(target) = &status.target_key {
        rows.insert(1, ("Is to write with", writer(Some(target))));
    }
    if let Some(moved) = &status.moved {
        let text = format!("{} since {}", code(&moved.key_id_hash), moment(&moved.since));
        rows.push(("Moved at the vendor", text));
    }
    let rows: String =
        rows.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>")).collect();
    format!("<section id=\"now\"><h2>Now</h2><dl>{rows}</dl></section>")
}

fn rotation(rotation: &Rotation) -> String {
    let stages: String = STAGES
        .iter()
        .map(|stage| {
            let mark = if *stage == rotation.stage { " aria-current=\"step\"" } else { "" };
            format!("<li{mark}>{}</li>", stage.label())
        })
        .collect();
    let mut text = format!(
        "<section id=\"rotation\"><h2>Rotation under way: {}</h2><ol>{stages}</ol><p>Since {}</p>",
        rotation.stage.label(),
        moment(&rotation.started_time),
    );
    if let Some(progress) = &rotation.progress {
        text.push_str(&bar(progress));
        text.push_str(&format!("<p>{}</p>", Safe(progress)));
    }
    if !rotation.waiting_for.is_empty() {
        let who = rotation.waiting_for.iter().map(|who| format!("<li>{}</li>", Safe(who)));
        text.push_str(&format!("<p>Waits for</p><ul>{}</ul>", who.collect::<String>()));
    }
    text.push_str("</section>");
    text
}

/// `412 of 3000 …` as a bar.
fn bar(progress: &str) -> String {
    let mut words = progress.split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let done = number();
    let (Some(done), Some("of")) = (done, words.next()) else { return String::new() };
    let Some(all) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
        return String::new();
    };
    if all == 0 || done > all {
        return String::new();
    }
    format!("<progress aria-label=\"Progress\" max=\"{all}\" value=\"{done}\"></progress>")
}

fn keys(status: &Status) -> String {
    let rows: Vec<Vec<String>> = status
        .keys
        .iter()
        .map(|key| {
            let role = Safe(&key.role).to_string();
            let note = if key.retained { "<small>kept until etcd was counted</small>" } else { "" };
            vec![
                format!("key {}", key.id),
                Safe(&key.vendor).to_string(),
                format!("{role}{note}"),
                code(&key.fingerprint),
            ]
        })
        .collect();
    table("keys", "Keys", &["Key", "Provider", "Role", "Fingerprint"], &rows)
}

fn replicas(status: &Status) -> String {
    let rows: Vec<Vec<String>> = status
        .replicas
        .iter()
        .map(|replica| {
            let health = match replica.healthy {
                true => badge(Mood::Good, "healthy"),
                false => badge(Mood::Bad, "not healthy"),
            };
            let none = || "<span class=\"soft\">none</span>".to_owned();
            vec![
                Safe(&replica.name).to_string(),
                replica.revision.as_deref().map_or_else(none, |text| Safe(text).to_string()),
                format!("{health}{}", small(replica.reason.as_deref())),
                replica.key_id_hash.as_deref().map_or_else(none, code),
            ]
        })
        .collect();
    table("replicas", "Replicas", &["Pod", "Revision", "Health", "key_id hash"], &rows)
}

/// What is not well with a key at a replica; the rest is in the tables above.
fn reports(status: &Status) -> String {
    let sick = status.health_reports.iter().filter(|report| report.status != "Healthy");
    let rows: Vec<Vec<String>> = sick
        .map(|report| {
            vec![
                Safe(&report.node_name).to_string(),
                format!("key {}", Safe(&report.key_id)),
                badge(Mood::Bad, &report.status),
                Safe(report.detail.as_deref().unwrap_or_default()).to_string(),
            ]
        })
        .collect();
    table("reports", "Keys that are not well", &["Pod", "Key", "Health", "Why"], &rows)
}

fn conditions(status: &Status) -> String {
    let rows: Vec<Vec<String>> = status
        .conditions
        .iter()
        .map(|condition| {
            vec![
                Safe(&condition.kind).to_string(),
                badge(mood(condition), &condition.status),
                Safe(&condition.reason).to_string(),
                Safe(&condition.message).to_string(),
                moment(&condition.last_transition_time),
            ]
        })
        .collect();
    table("conditions", "Conditions", &["Condition", "Status", "Reason", "Message", "Since"], &rows)
}

fn mood(condition: &Condition) -> Mood {
    let good = if GOOD_IF_FALSE.contains(&&*condition.kind) { "False" } else { "True" };
    match condition.status.as_str() {
        status if status == good => Mood::Good,
        "True" if condition.kind == "KMSKeyRotationInProgress" => Mood::Open,
        "False" if is_on_the_way(condition) => Mood::Open,
        "True" | "False" => Mood::Bad,
        _ => Mood::Open,
    }
}

fn history(status: &Status) -> String {
    let turn = |turn: &Turn| writer(Some(turn));
    let rows: Vec<Vec<String>> = status
        .history
        .iter()
        .map(|past| {
            vec![
                moment(&past.started_time),
                moment(&past.completion_time),
                turn(&past.from),
                turn(&past.to),
                past.state.label().to_owned(),
            ]
        })
        .collect();
    table("history", "Rotations before", &["Began", "Ended", "From", "To", "How it ended"], &rows)
}

fn retired(status: &Status) -> String {
    let rows: Vec<Vec<String>> = status
        .retired
        .iter()
        .map(|key| {
            vec![
                Safe(&key.id).to_string(),
                Safe(&key.vendor).to_string(),
                code(&key.fingerprint),
                moment(&key.retired_time),
                Safe(&key.advice).to_string(),
            ]
        })
        .collect();
    let heads = ["Key", "Provider", "Fingerprint", "Backups before need it", "What to do"];
    table("retired", "Retired", &heads, &rows)
}

fn small(text: Option<&str>) -> String {
    text.map(|text| format!("<small>{}</small>", Safe(text))).unwrap_or_default()
}
