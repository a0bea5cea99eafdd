//! HTML: plain, without scripts, and nothing of it from elsewhere.

use std::fmt::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const STYLE: &str = ":root{color-scheme:light dark;--text:#1b1f24;--soft:#57606a;--line:#d9dee3;--page:#f6f8fa;--card:#fff;--good:#116329;--bad:#b3261e;--warn:#9a5700;--note:#fff4e5;--link:#0a58ca}\
@media (prefers-color-scheme:dark){:root{--text:#e6e9ec;--soft:#9aa4af;--line:#30363d;--page:#0e1116;--card:#161b22;--good:#6fdd8b;--bad:#ff8a80;--warn:#e3a04f;--note:#33260f;--link:#79b8ff}}\
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:80rem;padding:1.5rem;color:var(--text);background:var(--page)}\
header{display:flex;align-items:center;gap:.8rem;flex-wrap:wrap;margin-bottom:1rem}h1{font-size:1.4rem;margin:0;overflow-wrap:anywhere}h2{font-size:1rem;margin:0 0 .6rem}nav{margin-bottom:.6rem}\
section{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem 1.2rem;margin:0 0 1rem;overflow-x:auto}\
.note{background:var(--note);border-left:4px solid var(--warn)}dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem;margin:0}dt,.soft,small{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}caption{text-align:left;font-weight:600;padding-bottom:.6rem}th,td{text-align:left;padding:.5rem .8rem .5rem 0;border-top:1px solid var(--line);vertical-align:top;overflow-wrap:break-word}thead th{white-space:nowrap;border:0;padding-top:0;font-size:.82rem;font-weight:600;color:var(--soft)}tbody th{white-space:nowrap;font-weight:600}\
code{font:13px ui-monospace,monospace}time{white-space:nowrap}td small{display:block}ul{margin:.2rem 0 0;padding-left:1.1rem}\
ol{display:flex;flex-wrap:wrap;gap:.4rem;list-style:none;margin:0 0 .8rem;padding:0}ol li{border:1px solid var(--line);border-radius:.3rem;padding:.1rem .6rem;color:var(--soft)}ol li[aria-current]{border-color:currentColor;color:var(--text);font-weight:700}\
progress{width:100%;max-width:30rem;height:.8rem}.badge{border:1px solid currentColor;border-radius:.7rem;padding:.05rem .6rem;font-size:.85rem;font-weight:600;white-space:nowrap}.ok{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}\
a{color:var(--link)}a:focus-visible{outline:3px solid var(--link);outline-offset:2px}.skip{position:absolute;left:-99rem}.skip:focus{left:1rem}";

/// A text from outside: never markup.
pub(super) struct Safe<'a>(pub(super) &'a str);

/// How something is, in a word and a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Good,
    Bad,
    Open,
}

impl fmt::Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Neither shown nor harmless: they may turn the direction of what follows.
                c if c.is_control() && c != '\n' => f.write_char('\u{fffd}')?,
                '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    f.write_char('\u{fffd}')?;
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

impl Mood {
    fn class(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Bad => "bad",
            Self::Open => "warn",
        }
    }
}

/// What browsers may do with it: paint.
pub(super) fn policy() -> String {
    let style = STANDARD.encode(sidekey_core::sha256(STYLE.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    )
}

/// A whole page; `body` is markup, `title` is not. One that is watched comes anew by itself.
pub(super) fn document(title: &str, watched: bool, body: &str) -> String {
    let refresh = if watched { "<meta http-equiv=\"refresh\" content=\"30\">" } else { "" };
    let tail = if watched { " · this page comes anew every 30 s" } else { "" };
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">{refresh}\
         <title>{title}</title><style>{STYLE}</style></head><body>\
         <a class=\"skip\" href=\"#main\">To the content</a><main id=\"main\">{body}</main>\
         <footer class=\"soft\">Sidekey {version} · <a href=\"/\">control planes</a> · \
         <a href=\"/status.json\">status.json</a> · <a href=\"/metrics\">metrics</a>{tail}</footer>\
         </body></html>\n",
        title = Safe(title),
        version = crate::VERSION,
    )
}

pub(super) fn badge(mood: Mood, text: &str) -> String {
    format!("<span class=\"badge {}\">{}</span>", mood.class(), Safe(text))
}

pub(super) fn code(text: &str) -> String {
    format!("<code>{}</code>", Safe(text))
}

pub(super) fn moment(text: &str) -> String {
    format!("<time>{}</time>", Safe(text))
}

/// A table of ready cells; the first of each row is its head. Nothing where there is no row.
pub(super) fn table(id: &str, caption: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    let rows: String = rows
        .iter()
        .map(|cells| {
            let cell = |(index, cell): (usize, &String)| match index {
                0 => format!("<th scope=\"row\">{cell}</th>"),
                _ => format!("<td>{cell}</td>"),
            };
            format!("<tr>{}</tr>", cells.iter().enumerate().map(cell).collect::<String>())
        })
        .collect();
    format!(
        "<section id=\"{id}\"><table><caption>{caption}</caption><thead><tr>{heads}</tr></thead>\
         <tbody>{rows}</tbody></table></section>"
    )
}

/// To somebody who has shown no token, or one that the cluster does not accept.
pub(super) fn unknown() -> String {
    let body = "<header><h1>Who is it?</h1></header><section><p>This page is for users of the \
        cluster. Show a token of yours: in a browser as the <strong>password</strong>, with any \
        name; elsewhere as <code>Authorization: Bearer …</code>.</p><p>A token that lasts an hour: \
        <code>kubectl create token NAME --namespace NAMESPACE</code>, for a ServiceAccount that may \
        see SecretEncryptions.</p></section>";
    document("Sidekey: who is it?", false, body)
}

/// To somebody who lacks a right.
pub(super) fn forbidden(question: &str) -> String {
    let body = format!(
        "<header><h1>You may not see this</h1></header><section><p>The cluster says no to</p>\
         <p>{}</p><p>Ask whoever gives rights in it.</p></section>",
        code(question)
    );
    document("Sidekey: not allowed", false, &body)
}

/// Where there is nothing.
pub(super) fn absent() -> String {
    let body = "<header><h1>There is nothing here</h1></header>\
        <section><p>Perhaps it is gone. <a href=\"/\">All control planes</a></p></section>";
    document("Sidekey: not found", false, body)
}

/// Where the API server does not say who may see it.
pub(super) fn unanswered() -> String {
    let body = "<header><h1>The API server gives no answer</h1></header><section><p>It must say \
        who you are and what you may see. Try again in a moment; the operator's log says why.</p>\
        </section>";
    document("Sidekey: no answer", false, body)
}
