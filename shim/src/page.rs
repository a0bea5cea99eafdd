//! The page for people: plain HTML, rendered here, without scripts.

use crate::state::{KeyStatus, ShimStatus};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.4rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.8rem 0 .5rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.45rem .7rem;border-bottom:1px solid #d9dee3;vertical-align:top}\
th{font-weight:600;color:#57606a;font-size:.85rem}code{font:13px ui-monospace,monospace;word-break:break-all}\
.ok{color:#116329}.bad{color:#b3261e}.badge{border:1px solid currentColor;border-radius:.6rem;padding:0 .5rem;font-size:.85rem;white-space:nowrap}\
.note{background:#fff4e5;border-left:4px solid #bf6a02;padding:.6rem .9rem;margin:1rem 0}.muted{color:#57606a}\
@media (prefers-color-scheme:dark){body{background:#12161b;color:#e6e9ec}th,.muted{color:#9aa4af}th,td{border-color:#30363d}.ok{color:#6fdd8b}.bad{color:#ff8a80}.note{background:#3a2a12}}";

/// The whole page.
pub(crate) fn render(status: &ShimStatus) -> String {
    let mut page = String::with_capacity(4096);
    let revision = status.revision.as_deref().unwrap_or("none");
    page.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"10\"><title>Sidekey shim</title><style>");
    page.push_str(STYLE);
    page.push_str("</style></head><body><h1>Sidekey shim</h1>");
    page.push_str(&format!(
        "<p class=\"muted\">version {}, revision <strong id=\"revision\">{}</strong>, loaded {} from {}</p>",
        escape(status.version),
        escape(revision),
        escape(&status.config.loaded),
        escape(&status.config.source),
    ));
    page.push_str(&format!(
        "<p id=\"health\">{} Writes go to key <strong id=\"writer\">{}</strong>.</p>",
        badge(status.healthy, "healthy", "failing"),
        escape(&status.write_key)
    ));
    if let Some(reason) = &status.reason {
        page.push_str(&format!(
            "<div class=\"note\">kube-apiserver is told: {}</div>",
            escape(reason)
        ));
    }
    if let Some(refused) = &status.config.refused {
        page.push_str(&format!(
            "<div class=\"note\" id=\"refused\">A newer configuration was refused at {}; the last good one is in use. {}</div>",
            escape(&refused.at),
            escape(&refused.error)
        ));
    }
    page.push_str("<h2>Keys</h2><table id=\"keys\"><thead><tr><th>Key</th><th>Role</th><th>Health</th><th>Since</th><th>key_id hash</th><th>Endpoints</th><th>Last error</th></tr></thead><tbody>");
    for key in &status.keys {
        page.push_str(&row(key));
    }
    page.push_str("</tbody></table><h2>Listeners</h2><ul id=\"listeners\">");
    for listener in &status.config.listeners {
        page.push_str(&format!("<li><code>{}</code></li>", escape(listener)));
    }
    page.push_str("</ul><p class=\"muted\"><a href=\"/status\">status</a> · <a href=\"/metrics\">metrics</a> · <a href=\"/readyz\">readyz</a></p></body></html>\n");
    page
}

fn row(key: &KeyStatus) -> String {
    let error = match &key.last_error {
        Some(error) => format!(
            "{}<br><span class=\"muted\">{}</span>",
            escape(&error.error),
            escape(&error.at)
        ),
        None => "none".into(),
    };
    format!(
        "<tr data-key=\"{id}\" data-role=\"{role}\"><td>{id}</td><td>{role}</td><td>{badge}</td><td>{since}</td><td><code>{hash}</code></td><td><code>{endpoints}</code></td><td>{error}</td></tr>",
        id = escape(&key.id),
        role = key.role,
        badge = badge(key.healthy, "healthy", "down"),
        since = escape(&key.since),
        hash = escape(key.key_id_hash.as_deref().unwrap_or("not announced")),
        endpoints = escape(&key.endpoints.join(" ")),
    )
}

fn badge(good: bool, yes: &str, no: &str) -> String {
    let (class, text) = if good { ("ok", yes) } else { ("bad", no) };
    format!("<span class=\"badge {class}\">{text}</span>")
}

/// Texts come from configuration files and from plugins: none of them is markup.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_outside_are_not_markup() {
        assert_eq!(escape("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
    }
}
