//! The flags of each way to log in.

use serde_json::{Value, json};
use sidekey_core::{Error, Secret};

use super::Flags;
use super::describe::{either, path, usage};
use super::given::Given;
use crate::config::NO_WRAPPING;

/// Where kubelet puts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Flags that tell of a way to log in where none is named.
const TELLING: [(&str, &str); 8] = [
    ("approle-role-id", "approle"),
    ("jwt-role", "jwt"),
    ("vault-k8s-role", "kubernetes"),
    ("cert-file", "cert"),
    ("cert-pem", "cert"),
    ("userpass-username", "userpass"),
    ("token", "token"),
    ("token-path", "token"),
];

/// A way to log in, in the words of the configuration. Secrets go to `given`.
pub(super) fn credentials(flags: &Flags, given: &mut Given) -> Result<Value, Error> {
    let told = || TELLING.iter().find(|(flag, _)| flags.get(flag).is_some());
    let method = flags.get("auth-method").or_else(|| told().map(|(_, method)| *method));
    let method = method.ok_or_else(|| usage("-auth-method is missing, or the flags of one"))?;
    let mut way = Way { flags, value: json!({}) };
    let name = match method.to_ascii_lowercase().as_str() {
        "approle" => way.approle(given)?,
        "jwt" => way.jwt("jwt")?,
        "kubernetes" | "k8s" => way.jwt("kubernetes")?,
        "cert" => way.cert()?,
        "userpass" => way.userpass(given)?,
        "token" => way.token(given)?,
        _ => {
            let known = "approle, jwt, kubernetes, cert, userpass, token";
            return Err(usage(&format!("-auth-method {method:?} is not one of {known}")));
        }
    };
    Ok(json!({name: way.value}))
}

struct Way<'a> {
    flags: &'a Flags,
    value: Value,
}

impl Way<'_> {
    fn put(&mut self, field: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.value[field] = value.into();
        }
    }

    fn file(&mut self, field: &str, flag: &str) -> Result<bool, Error> {
        let file = path(self.flags.get(flag))?;
        let there = file.is_some();
        self.put(field, file);
        Ok(there)
    }

    fn mount(&mut self, own: &str) {
        self.put("mount", self.flags.get(own).or_else(|| self.flags.get("auth-mount")));
    }

    /// Takes a secret out of the flags, and leaves word that there was one.
    fn secret(&mut self, flag: &str) -> Option<Secret> {
        let secret = self.flags.get(flag)?;
        self.put("given", Some(true));
        Some(Secret::new(secret.as_bytes().to_vec()))
    }

    fn approle(&mut self, given: &mut Given) -> Result<&'static str, Error> {
        if self.flags.get("approle-wrapped-secret-id-path").is_some() {
            return Err(usage(&format!("-approle-wrapped-secret-id-path {NO_WRAPPING}")));
        }
        self.mount("approle-mount");
        self.put("roleId", self.flags.get("approle-role-id"));
        if !self.file("secretIdFile", "approle-secret-id-path")? {
            given.secret_id = self.secret("approle-secret-id").map(trimmed);
        }
        Ok("appRole")
    }

    fn jwt(&mut self, name: &'static str) -> Result<&'static str, Error> {
        self.mount("jwt-mount");
        let own = self.flags.get("jwt-mount").is_none().then(|| self.flags.get("vault-k8s-mount"));
        self.put("mount", own.flatten());
        self.put("role", either(self.flags, "jwt-role", "vault-k8s-role")?);
        if !self.file("tokenFile", "jwt-token-path")? {
            self.put("tokenFile", Some(SERVICE_ACCOUNT));
        }
        Ok(name)
    }

    fn cert(&mut self) -> Result<&'static str, Error> {
        self.mount("cert-mount");
        self.put("role", self.flags.get("cert-role"));
        self.put("certFile", path(either(self.flags, "cert-file", "cert-pem")?)?);
        self.file("keyFile", "cert-key")?;
        Ok("cert")
    }

    fn userpass(&mut self, given: &mut Given) -> Result<&'static str, Error> {
        self.mount("userpass-mount");
        self.put("username", self.flags.get("userpass-username"));
        if !self.file("passwordFile", "userpass-password-path")? {
            // Blanks may be a part of it.
            given.password = self.secret("userpass-password");
        }
        Ok("userpass")
    }

    fn token(&mut self, given: &mut Given) -> Result<&'static str, Error> {
        if !self.file("file", "token-path")? {
            given.token = self.secret("token").map(trimmed);
        }
        Ok("token")
    }
}

fn trimmed(secret: Secret) -> Secret {
    Secret::new(secret.expose().trim_ascii().to_vec())
}
