//! Microsoft Entra ID and a machine's metadata endpoint: tokens for those who prove who they are.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{Answer, Asked, Azure, Client, TENANT, Token, random};

const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const AUTHORITY: &str = "https://login.microsoftonline.com";

/// The fields of a form.
type Form = BTreeMap<String, String>;
/// The HTTP status, the code and the words.
type Refused = (u16, &'static str, String);

impl Azure {
    /// `POST /{tenant}/oauth2/v2.0/token`.
    pub(super) fn issue(&mut self, asked: &Asked) -> Answer {
        let form = asked.form();
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        if !asked.path.starts_with(&format!("/{TENANT}/")) {
            return refusal(400, "invalid_request", "AADSTS90002: Tenant not found.");
        }
        if field("grant_type") != "client_credentials" {
            return refusal(
                400,
                "unsupported_grant_type",
                "AADSTS70003: The grant type is not supported.",
            );
        }
        // Older libraries name the resource itself; newer ones ask for more scopes than one.
        let mut scopes = field("scope").split(' ');
        let scope = scopes.find_map(|scope| scope.strip_suffix("/.default"));
        let named = form.get("resource").map(|resource| resource.trim_end_matches('/'));
        let Some(resource) = scope.or(named) else {
            let text = "AADSTS1002012: The provided value for scope is not valid.";
            return refusal(400, "invalid_scope", text);
        };
        if resource != self.resource() {
            return refusal(
                400,
                "invalid_resource",
                "AADSTS500011: The resource principal was not found in the tenant.",
            );
        }
        let (resource, is_old) = (resource.to_owned(), scope.is_none());
        match self.proven(asked, &form) {
            Ok(client) => self.grant(client, resource, is_old),
            Err((status, error, text)) => refusal(status, error, &text),
        }
    }

    /// The client that a form proves to be.
    fn proven(&mut self, asked: &Asked, form: &Form) -> Result<String, Refused> {
        let no = |text: &str| Err((401, "invalid_client", text.to_owned()));
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        let client = field("client_id").to_owned();
        let Some(known) = self.clients.get(&client) else {
            let text = "AADSTS700016: Application was not found in the directory.";
            return Err((400, "unauthorized_client", text.to_owned()));
        };
        let assertion = field("client_assertion");
        if let Some(secret) = form.get("client_secret") {
            let is_right = known.secret.as_ref() == Some(secret);
            let wrong = || no("AADSTS7000215: Invalid client secret provided.");
            return if is_right { Ok(client) } else { wrong() };
        }
        if field("client_assertion_type") != ASSERTION {
            return no(
                "AADSTS7000218: The request body must contain client_assertion or client_secret.",
            );
        }
        if known.federated.contains(assertion) {
            return Ok(client);
        }
        // As it was asked, or as everybody knows it.
        let own = format!("https://{}", asked.header("host").unwrap_or_default());
        let audiences = [AUTHORITY, &own].map(|host| format!("{host}/{TENANT}/oauth2/v2.0/token"));
        match known.signed(assertion, &client, &audiences) {
            Ok(id) if self.assertions.insert(id.clone()) => Ok(client),
            Ok(_) => no("AADSTS700027: the assertion was sent before."),
            Err(error) => no(&format!("AADSTS700027: {error}.")),
        }
    }

    /// `GET /metadata/identity/oauth2/token`.
    pub(super) fn hand_out(&mut self, asked: &Asked) -> Answer {
        if asked.header("metadata") != Some("true") {
            return refusal(400, "bad_request_102", "Required metadata header not specified");
        }
        let parameters = asked.parameters();
        let resource = parameters.get("resource").cloned().unwrap_or_default();
        if resource != self.resource() {
            return refusal(
                400,
                "invalid_resource",
                "AADSTS500011: The resource principal was not found in the tenant.",
            );
        }
        let mut managed =
            self.clients.iter().filter(|(_, client)| client.managed).map(|(name, _)| name);
        let found = match parameters.get("client_id") {
            Some(client) => managed.find(|name| *name == client),
            None => managed.next(),
        };
        match found.cloned() {
            Some(client) => self.grant(client, resource, true),
            None => refusal(400, "invalid_request", "Identity not found"),
        }
    }

    /// What Microsoft's own libraries ask for before they log in.
    pub(super) fn discover(&self, asked: &Asked) -> Answer {
        if asked.path.ends_with("instance") {
            let endpoint = format!("{AUTHORITY}/{TENANT}/v2.0/.well-known/openid-configuration");
            let names = [
                "login.microsoftonline.com",
                "login.windows.net",
                "login.microsoft.com",
                "sts.windows.net",
            ];
            let metadata = json!([{"preferred_network": names[0], "preferred_cache": names[1], "aliases": names}]);
            let body = json!({"tenant_discovery_endpoint": endpoint, "api-version": "1.1", "metadata": metadata});
            return Answer::json(200, &body);
        }
        let at = |path: &str| format!("{AUTHORITY}/{TENANT}/{path}");
        Answer::json(
            200,
            &json!({
                "token_endpoint": at("oauth2/v2.0/token"), "issuer": at("v2.0"),
                "authorization_endpoint": at("oauth2/v2.0/authorize"),
            }),
        )
    }

    fn grant(&mut self, client: String, resource: String, is_old: bool) -> Answer {
        let Ok(random) = random(32) else {
            return refusal(500, "server_error", "no random numbers");
        };
        let token = format!("eyJ0eXAiOiJKV1Qi.{random}");
        let ends = SystemTime::now() + self.life;
        let seconds = self.life.as_secs();
        let mut body = json!({"token_type": "Bearer", "expires_in": seconds, "ext_expires_in": seconds, "access_token": token});
        if is_old {
            // Numbers as text, and the moment too.
            let at = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            body["expires_in"] = seconds.to_string().into();
            body["expires_on"] = at.to_string().into();
            body["resource"] = resource.clone().into();
        }
        self.tokens.insert(token, Token { client, resource, ends });
        Answer::json(200, &body)
    }
}

impl Client {
    /// Checks an assertion that the client has signed, and tells its id.
    fn signed(&self, assertion: &str, client: &str, audiences: &[String]) -> Result<String> {
        let (certificate, public) =
            self.certificate.as_ref().context("the client has no certificate")?;
        let (text, signature) = assertion.rsplit_once('.').context("it is no JWT")?;
        let (head, claims) = text.split_once('.').context("it is no JWT")?;
        let part = |text: &str| -> Result<Value> {
            Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text)?)?)
        };
        let (head, claims) = (part(head)?, part(claims)?);
        ensure!(
            head["x5c"][0] == STANDARD.encode(certificate),
            "x5c does not begin with the certificate"
        );
        // RFC 7515 wants base64url; Microsoft's own library for Go writes plain base64.
        let hash = digest(&SHA256, certificate);
        let named = head["x5t#S256"].as_str().unwrap_or_default();
        let is_hash = named == URL_SAFE_NO_PAD.encode(hash) || named == STANDARD.encode(hash);
        ensure!(is_hash, "the certificate is not named by its hash");
        let algorithm: &'static dyn VerificationAlgorithm = match head["alg"].as_str() {
            Some("PS256") => &RSA_PSS_2048_8192_SHA256,
            Some("RS256") => &RSA_PKCS1_2048_8192_SHA256,
            _ => bail!("it is signed by another algorithm"),
        };
        let signature = URL_SAFE_NO_PAD.decode(signature)?;
        let key = UnparsedPublicKey::new(algorithm, public);
        ensure!(key.verify(text.as_bytes(), &signature).is_ok(), "its signature is wrong");
        ensure!(claims["iss"] == client && claims["sub"] == client, "it is of another client");
        ensure!(
            audiences.iter().any(|one| claims["aud"] == one.as_str()),
            "it is for somebody else: {}",
            claims["aud"]
        );
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        ensure!(claims["exp"].as_u64().is_some_and(|end| end > now), "it has expired");
        ensure!(
            claims["nbf"].as_u64().is_none_or(|start| start <= now + 300),
            "it is not good yet"
        );
        Ok(claims["jti"].as_str().context("it has no id")?.to_owned())
    }
}

/// The RSA key in a certificate, as PKCS#1 has it.
pub(super) fn public_key(certificate: &[u8]) -> Result<Vec<u8>> {
    // rsaEncryption, NULL; then the key in a bit string without unused bits.
    const RSA: [u8; 13] = [0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 0x05, 0];
    let at =
        certificate.windows(RSA.len()).position(|window| window == RSA).context("no RSA key")?;
    let rest = &certificate[at + RSA.len()..];
    let long = usize::from(*rest.get(1).context("cut off")?);
    ensure!(rest[0] == 3 && long == 0x82 && rest.len() > 5, "no bit string");
    let length = usize::from(rest[2]) << 8 | usize::from(rest[3]);
    Ok(rest.get(5..4 + length).context("cut off")?.to_vec())
}

fn refusal(status: u16, error: &str, text: &str) -> Answer {
    Answer::json(
        status,
        &json!({"error": error, "error_description": text, "error_codes": [], "trace_id": "fake"}),
    )
}
