//! Vault's HTTP API: how it is asked, what its codes mean, and where a redirect may lead.
//!
//! The code decides, never the text: texts differ between versions and vendors. A standby's
//! redirect is followed, but the token goes only where it was meant to: to an address that is
//! configured, or, where a CA bundle is configured, to whoever it vouches for. Plain text never
//! follows TLS.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http::{Method, Uri};
use serde::Deserialize;
use sidekey_core::{Error, Kind};
use sidekey_rest::codes::{Code, Refusal, code};
use sidekey_rest::servers::{Judge, Verdict};
use sidekey_rest::{Address, Answer, Request};

/// The state of the cluster that knows a token, on Vault Enterprise.
pub(crate) const INDEX: HeaderName = HeaderName::from_static("x-vault-index");
/// What a replica does that has not come to that state.
pub(crate) const INCONSISTENT: HeaderName = HeaderName::from_static("x-vault-inconsistent");
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Agents may ask for it, so that no browser can be made to ask them.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");
const AGENT: &str = concat!("sidekey-vault/", env!("CARGO_PKG_VERSION"));

/// What Vault's codes mean beyond what they mean anywhere. 472 and 473 are not in any standard:
/// they are what its health endpoint answers on a secondary for disaster recovery, and on a
/// performance standby; a balancer may pass them on.
const CODES: [Code; 7] = [
    code("", "404", Kind::KeyState, "check namespace, mount and name"),
    code("", "405", Kind::Config, "see whether a transit engine is mounted there"),
    code("", "412", Kind::Unavailable, "a replica does not know our token yet"),
    code("", "429", Kind::Throttled, "raise the rate limit quota of the mount"),
    code("", "472", Kind::Unavailable, "this cluster is a standby for disasters"),
    code("", "473", Kind::Unavailable, "see the log of the server"),
    code("", "503", Kind::Unavailable, "the server may be sealed: see `status` on it"),
];

#[derive(Deserialize)]
struct Errors {
    errors: Vec<String>,
}

/// A request to a path of the API, in a namespace.
pub(crate) fn request(
    method: Method,
    path: &str,
    namespace: Option<&HeaderValue>,
    body: Bytes,
) -> Request {
    let mut request = Request::new(method, format!("/v1/{path}"));
    let headers = &mut request.headers;
    headers.insert(REQUEST, HeaderValue::from_static("true"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(namespace) = namespace {
        headers.insert(NAMESPACE, namespace.clone());
    }
    request.body = body;
    request
}

/// A namespace as it is sent; none for the root.
pub(crate) fn namespace(path: &str) -> Result<Option<HeaderValue>, Error> {
    if path.is_empty() {
        return Ok(None);
    }
    let header = HeaderValue::try_from(path);
    header.map(Some).map_err(|_| Error::new(Kind::Config, "the namespace is no plain text"))
}

/// The error that a bad answer is, when nothing is known but its code.
pub(crate) fn refused(answer: &Answer, action: &str, object: &str) -> Error {
    // A balancer or a firewall in its place refuses us, and that may pass.
    if matches!(answer.status.as_u16(), 400 | 401 | 403) && !is_vaults(answer) {
        let hint = "it is not Vault that says so: see what stands before it";
        return error(Kind::Unavailable, hint, answer, action, object);
    }
    explained(answer, action, object, |refusal| refusal.explain(&CODES))
}

/// The error that a bad answer is, where its kind is known.
pub(crate) fn error(kind: Kind, hint: &str, answer: &Answer, action: &str, object: &str) -> Error {
    explained(answer, action, object, |refusal| refusal.error(kind, hint))
}

/// Whether it is Vault that answered, and not a balancer that does not find it.
pub(crate) fn is_vaults(answer: &Answer) -> bool {
    serde_json::from_slice::<Errors>(&answer.body).is_ok()
}

fn explained(
    answer: &Answer,
    action: &str,
    object: &str,
    explain: impl Fn(&Refusal<'_>) -> Error,
) -> Error {
    let status = answer.status.as_u16();
    let code = status.to_string();
    let known = status != 404 || is_vaults(answer);
    let text = match serde_json::from_slice::<Errors>(&answer.body) {
        Ok(list) => list.errors.join("; "),
        // The words of another server, if they are plain text.
        Err(_) => match std::str::from_utf8(&answer.body) {
            Ok(text) if !text.trim_start().starts_with(['<', '{', '[']) => text.to_owned(),
            _ => String::new(),
        },
    };
    let code = known.then_some(code.as_str());
    explain(&Refusal { action, object, status, code, text: &text })
}

/// Judges answers of the servers at `addresses`; `vouched` says that the CA bundle was chosen for
/// them, and is not the system's.
pub(crate) fn judge(addresses: Vec<Address>, vouched: bool) -> Box<Judge> {
    Box::new(move |from, request, answer| match answer.status.as_u16() {
        307 | 308 => match redirected(&addresses, vouched, from, request, answer) {
            Ok(to) => Verdict::Redirect(to),
            Err(error) => Verdict::Next(error),
        },
        // Sealed, not set up, in maintenance, without an active server behind it (which is a 500).
        500 | 502..=504 | 472 | 473 => Verdict::Next(refused(answer, "call", &from.to_string())),
        _ => Verdict::Final,
    })
}

/// Where a standby sends us, if we may go there.
fn redirected(
    addresses: &[Address],
    vouched: bool,
    from: &Address,
    request: &Request,
    answer: &Answer,
) -> Result<Address, Error> {
    let refused = |why: &str, hint: &str| {
        let text = format!("{from}: its redirect is not followed: {why}");
        Error::new(Kind::Unavailable, text).with_hint(hint.to_owned())
    };
    let location = answer.headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let uri: Option<Uri> = location.and_then(|location| location.parse().ok());
    let to = uri.as_ref().and_then(|uri| Some((Address::of(uri)?, uri.path())));
    let hint = "set api_addr on every Vault server";
    let (address, path) = to.ok_or_else(|| refused("it leads nowhere", hint))?;
    if path != request.path {
        let hint = "see whether it is a Vault server that answers, or a proxy in its place";
        return Err(refused("it leads to another path", hint));
    }
    if addresses.contains(&address) || (address.is_tls() && vouched) {
        return Ok(address);
    }
    Err(refused(
        &format!("{address} is not configured"),
        "add it to settings.addresses, or set settings.tls.caFile so that it can be trusted",
    ))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    /// Where a redirect to `location` leads.
    fn follow(vouched: bool, location: &str) -> Option<String> {
        let address = |text| Address::parse(text).unwrap();
        let addresses = [address("https://one:8200"), address("https://two:8200")];
        let request = request(Method::GET, "transit/keys/kms", None, Bytes::new());
        let status = StatusCode::TEMPORARY_REDIRECT;
        let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::try_from(location).unwrap())]);
        let answer = Answer { status, headers, body: Bytes::new() };
        let to = redirected(&addresses, vouched, &addresses[0], &request, &answer);
        to.ok().map(|to| to.to_string())
    }

    #[test]
    fn the_token_goes_only_where_it_was_meant_to() {
        let path = "/v1/transit/keys/kms";
        for vouched in [true, false] {
            let two = follow(vouched, &format!("https://TWO:8200{path}"));
            assert_eq!(two.as_deref(), Some("https://two:8200"), "it is configured");
            for stranger in ["http://two:8200", "http://evil", "ftp://two:8200", "//two:8200", ""] {
                assert_eq!(follow(vouched, &format!("{stranger}{path}")), None, "{stranger}");
            }
            assert_eq!(follow(vouched, "https://two:8200/v1/sys/seal"), None);
            assert_eq!(follow(vouched, &format!("https://u:p@two:8200{path}")), None);
        }
        let third = format!("https://three:8200{path}");
        assert_eq!(follow(true, &third).as_deref(), Some("https://three:8200"), "its CA vouches");
        assert_eq!(follow(false, &third), None, "the CAs of the system vouch for anybody");
    }
}
