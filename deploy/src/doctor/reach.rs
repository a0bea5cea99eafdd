//! Servers elsewhere: whether they can be reached, whether they are trusted, and whether their
//! clocks agree with ours.

use std::path::Path;
use std::time::{Duration, SystemTime};

use http::header::DATE;
use http::{Request, Uri};
use kube::client::Body;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use tokio::net::TcpStream;

use super::documents::Document;
use super::{Area, Finding, Findings, Options};

/// Tokens and signatures are refused from here on.
const MAX_SKEW: Duration = Duration::from_secs(60);

pub(super) async fn examine(documents: &[Document], options: &Options, findings: &mut Findings) {
    for document in documents.iter().filter(|document| !document.is_encryption()) {
        for key in document.value["keys"].as_array().into_iter().flatten() {
            for url in urls(key) {
                if document.is_shim() {
                    connect(&url, options, findings).await;
                } else {
                    visit(&url, authority(key).as_deref(), options, findings).await;
                }
            }
        }
    }
}

/// Every https URL of a key.
fn urls(value: &Value) -> Vec<Uri> {
    let mut found = Vec::new();
    collect(value, &mut found);
    found.sort_by_key(ToString::to_string);
    found.dedup();
    found
}

fn collect(value: &Value, found: &mut Vec<Uri>) {
    match value {
        Value::String(text) if text.starts_with("https://") => found.extend(text.parse::<Uri>()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(map) => map.values().for_each(|item| collect(item, found)),
        _ => {}
    }
}

/// The file of authorities that the key's settings name, each provider in its own place.
fn authority(key: &Value) -> Option<String> {
    let settings = &key["settings"];
    let places = ["/tls/caFile", "/tls/ca", "/caFile", "/caBundle"];
    let mut found = places.iter().filter_map(|place| settings.pointer(place)?.as_str());
    found.next().map(str::to_owned)
}

/// A proxy wants a certificate of its list: that it listens is all that can be seen without.
async fn connect(url: &Uri, options: &Options, findings: &mut Findings) {
    let place = format!("{}:{}", url.host().unwrap_or_default(), url.port_u16().unwrap_or(443));
    match tokio::time::timeout(options.timeout, TcpStream::connect(&place)).await {
        Ok(Ok(_)) => findings.ok(Area::Network, url, "can be reached"),
        Ok(Err(error)) => unreachable(url, &error.to_string(), findings),
        Err(_) => unreachable(url, "no answer", findings),
    }
}

fn unreachable(url: &Uri, why: &str, findings: &mut Findings) {
    let fix =
        "does it run, does a firewall or NetworkPolicy let this node through, is the name right?";
    findings.problem(Area::Network, url, format!("cannot be reached: {why}"), fix);
}

/// Asks a KMS for anything at all: any answer proves the way, the trust and the time.
async fn visit(url: &Uri, ca: Option<&str>, options: &Options, findings: &mut Findings) {
    let mut config = Config::new(url.clone());
    config.default_retry = false;
    if let Some(path) = ca {
        let list: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(Path::new(path)).and_then(Iterator::collect);
        // A file that cannot be read is a finding of its own.
        let Ok(list) = list else { return };
        config.root_cert = Some(list.iter().map(|certificate| certificate.to_vec()).collect());
    }
    let Ok(client) = Client::try_from(config) else { return };
    match tokio::time::timeout(options.timeout, date(&client, "/")).await {
        Ok(Ok(date)) => {
            findings.ok(Area::Network, url, "can be reached, and is trusted");
            findings.0.extend(date.map(|date| judge(&url.to_string(), date)));
        }
        Ok(Err(why)) => unreachable(url, &why, findings),
        Err(_) => unreachable(url, "no answer", findings),
    }
}

/// Compares this host's clock with that of an API server.
pub async fn clock(client: &Client, name: &str) -> Result<Option<Finding>, String> {
    Ok(date(client, "/version").await?.map(|date| judge(name, date)))
}

async fn date(client: &Client, path: &str) -> Result<Option<SystemTime>, String> {
    let request = Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
    let answer = client
        .send(request)
        .await
        .map_err(|error| crate::Error::failed("no answer").because(error).report())?;
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
    Ok(date.and_then(parse))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the one form that servers send.
fn parse(text: &str) -> Option<SystemTime> {
    let mut words = text.strip_suffix(" GMT")?.split_once(", ")?.1.split(' ');
    let (day, month, year, time) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let months =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| *name == month)? + 1;
    humantime::parse_rfc3339(&format!("{year}-{month:02}-{day}T{time}Z")).ok()
}

fn judge(name: &str, theirs: SystemTime) -> Finding {
    let mut findings = Findings::default();
    let now = SystemTime::now();
    let skew = now.duration_since(theirs).or_else(|_| theirs.duration_since(now));
    let seconds = skew.unwrap_or_default().as_secs();
    let ahead = if now > theirs { "ahead of" } else { "behind" };
    if seconds > MAX_SKEW.as_secs() {
        let text = format!("this host is {seconds} s {ahead} {name}");
        let fix = "set the clocks: NTP. Certificates, tokens and signatures depend on them";
        findings.problem(Area::Clock, name, text, fix);
    } else {
        findings.ok(Area::Clock, name, format!("{seconds} s apart"));
    }
    findings.0.remove(0)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_key_is_visited_with_the_authorities_that_its_provider_trusts() {
        let settings = [
            serde_json::json!({"tls": {"caFile": "/ca"}}),
            serde_json::json!({"caFile": "/ca"}),
            serde_json::json!({"caBundle": "/ca"}),
        ];
        for settings in settings {
            let key = serde_json::json!({"settings": settings});
            assert_eq!(authority(&key).as_deref(), Some("/ca"), "{key}");
        }
        assert_eq!(authority(&serde_json::json!({"id": 1})), None);
    }

    #[test]
    fn dates_of_http_are_read_and_compared() {
        let date = parse("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(sidekey_core::time(date), "1994-11-06T08:49:37Z");
        for bad in ["", "Sun, 06 Nov 1994", "1994-11-06T08:49:37Z", "Sun, 06 Foo 1994 08:49:37 GMT"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let now = SystemTime::now();
        assert_eq!(judge("x", now).level, Level::Ok);
        for other in [now - Duration::from_secs(90), now + Duration::from_secs(90)] {
            assert_eq!(judge("x", other).level, Level::Problem);
        }
    }
}
