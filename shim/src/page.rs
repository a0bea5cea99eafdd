//! The page for people: plain HTML, rendered here, without scripts.
//!
//! What it shows comes from configuration files and from plugins. All of it is escaped, and the
//! browser is told to run and to fetch nothing, should that ever fail.

use crate::state::{RoutedKeyStatus, ShimStatus};

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
<meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"10\">\
<title>Sidekey shim</title><style>";

const STYLE: &str = ":root{color-scheme:light dark;--text:#1b1f24;--soft:#57606a;--line:#d9dee3;--page:#f6f8fa;--card:#fff;--good:#116329;--bad:#b3261e;--warn:#bf6a02;--note:#fff4e5}\
@media (prefers-color-scheme:dark){:root{--text:#e6e9ec;--soft:#9aa4af;--line:#30363d;--page:#0e1116;--card:#161b22;--good:#6fdd8b;--bad:#ff8a80;--warn:#e3a04f;--note:#33260f}}\
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:76rem;padding:1.5rem;color:var(--text);background:var(--page)}\
header{display:flex;align-items:center;gap:.8rem;flex-wrap:wrap}h1{font-size:1.4rem;margin:0}h2{font-size:1rem;margin:0 0 .6rem}header+p{margin:.3rem 0 1rem}\
section{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem 1.2rem;margin:0 0 1rem;overflow-x:auto}\
.note{background:var(--note);border-left:4px solid var(--warn)}pre{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0 0}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem;margin:0}dt,.soft{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.55rem .8rem .55rem 0;border-top:1px solid var(--line);vertical-align:top}thead th{border:0;padding-top:0;font-size:.82rem;font-weight:600;color:var(--soft)}\
tr[data-role=write] td:first-child{font-weight:700}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}time{white-space:nowrap}td:nth-child(4){width:44%}td small{display:block;color:var(--soft)}\
.badge{border:1px solid currentColor;border-radius:.7rem;padding:.05rem .6rem;font-size:.85rem;font-weight:600;white-space:nowrap}.ok{color:var(--good)}.bad{color:var(--bad)}a{color:inherit}ul{margin:0;padding-left:1.1rem}";

/// The whole page.
pub(crate) fn render(status: &ShimStatus) -> String {
    let mut page = String::with_capacity(8192);
    page.push_str(HEAD);
    page.push_str(STYLE);
    page.push_str("</style></head><body>");
    page.push_str(&health(status));
    page.push_str(&notes(status));
    page.push_str(&keys(&status.keys));
    page.push_str(&configuration(status));
    page.push_str("<footer class=\"soft\"><a href=\"/status\">status</a> · <a href=\"/metrics\">metrics</a> · <a href=\"/healthz\">healthz</a> · <a href=\"/readyz\">readyz</a> · this page comes anew every 10 s</footer></body></html>\n");
    page
}

fn health(status: &ShimStatus) -> String {
    let writer = escape(&status.write_key);
    let tells = if status.healthy { "that all is well" } else { "of an error" };
    format!(
        "<header id=\"health\"><h1>Sidekey shim</h1>{badge}</header><p>Writes go to key <strong id=\"writer\">{writer}</strong>; kube-apiserver is told {tells}.</p>",
        badge = badge(status.healthy, "healthy", "failing"),
    )
}

/// What needs somebody's attention.
fn notes(status: &ShimStatus) -> String {
    let note = |id: &str, title: &str, text: &str, error: &str| {
        let error = escape(error);
        format!("<section class=\"note\"{id}><h2>{title}</h2>{text}<pre>{error}</pre></section>")
    };
    let mut notes = String::new();
    if let Some(reason) = &status.reason {
        notes += &note(" id=\"reason\"", "The write key does not work", "", reason);
    }
    if let Some(refused) = &status.config.config.refused {
        let text = "The last good one stays in use, and the newer one is tried again by itself.";
        let text = format!("{text} Last tried: {}.", moment(&refused.at));
        let title = "A newer configuration is refused";
        notes += &note(" id=\"refused\"", title, &text, &refused.error);
    }
    for warning in &status.config.config.warnings {
        notes += &note("", "The configuration is used otherwise than it says", "", warning);
    }
    notes
}

fn configuration(status: &ShimStatus) -> String {
    let code = |text: &str| format!("<code>{}</code>", escape(text));
    let listeners: Vec<String> = status.config.listeners.iter().map(|text| code(text)).collect();
    let rows = [
        (
            "Revision",
            format!(
                "<strong id=\"revision\">{}</strong>",
                escape(status.revision.as_deref().unwrap_or("none"))
            ),
        ),
        ("Loaded", moment(&status.config.config.loaded)),
        ("From", code(&status.config.config.source)),
        ("Listens on", listeners.join("<br>")),
        (
            "key_id hash",
            status.key_id_hash.as_deref().map_or_else(|| "none is announced".to_owned(), code),
        ),
        ("Mode", status.mode.to_owned()),
        (
            "Running",
            format!("version {} since {}", escape(status.version), moment(&status.started)),
        ),
    ];
    let rows: String =
        rows.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>")).collect();
    format!("<section><h2>Configuration in use</h2><dl>{rows}</dl></section>")
}

/// The key that writes first.
fn keys(keys: &[RoutedKeyStatus]) -> String {
    let (writers, readers): (Vec<_>, Vec<_>) = keys.iter().partition(|key| key.role == "write");
    let rows: String = writers.into_iter().chain(readers).map(row).collect();
    format!(
        "<section><h2>Keys</h2><table id=\"keys\"><thead><tr><th>Key</th><th>Role</th><th>Health</th><th>Where, and as what</th><th>Last error</th></tr></thead><tbody>{rows}</tbody></table></section>"
    )
}

fn row(key: &RoutedKeyStatus) -> String {
    let error = match &key.last_error {
        Some(error) => format!("{}<small>{}</small>", escape(&error.error), moment(&error.at)),
        None => "<span class=\"soft\">none</span>".into(),
    };
    let endpoints: Vec<String> = key.endpoints.iter().map(|text| escape(text)).collect();
    format!(
        "<tr data-key=\"{id}\" data-role=\"{role}\"><td>{id}</td><td>{role}</td><td>{badge}<small>since {since}</small></td><td><code>{endpoints}</code><small>key_id hash <code>{hash}</code></small><small>fingerprint <code>{fingerprint}</code>, {canary}</small></td><td>{error}</td></tr>",
        id = escape(&key.id),
        role = key.role,
        badge = badge(key.healthy, "healthy", "down"),
        since = moment(&key.since),
        endpoints = endpoints.join("<br>"),
        hash = escape(key.key_id_hash.as_deref().unwrap_or("not known yet")),
        fingerprint = escape(&key.fingerprint),
        canary = if key.canary { "with canary" } else { "without canary" },
    )
}

fn badge(good: bool, yes: &str, no: &str) -> String {
    let (class, text) = if good { ("ok", yes) } else { ("bad", no) };
    format!("<span class=\"badge {class}\">{text}</span>")
}

fn moment(text: &str) -> String {
    format!("<time>{}</time>", escape(text))
}

/// Texts come from configuration files and from plugins: none of them is markup.
fn escape(text: &str) -> String {
    let pairs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(*from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_outside_are_not_markup() {
        assert_eq!(escape("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
    }
}
