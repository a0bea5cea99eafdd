//! The flags of each way to log in.

use serde_json::{Value, json};
use sidekey_core::{Error, Secret};

use super::Flags;
use super::describe::{path, put, usage};
use crate::given::Given;

/// Where kubelet puts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// A way to log in, in the words of the configuration. Secrets go to `given`.
pub(super) fn credentials(flags: &Flags, given: &mut Given) -> Result<Value, Error> {
    let method = flags.method()?.to_ascii_lowercase();
    let mut way = json!({});
    let name = match method.as_str() {
        "approle" => flags.approle(&mut way, given)?,
        "jwt" => flags.jwt(&mut way, "jwt")?,
        "kubernetes" | "k8s" => flags.jwt(&mut way, "kubernetes")?,
        "cert" => flags.cert(&mut way)?,
        "userpass" => flags.userpass(&mut way, given)?,
        "token" => flags.token(&mut way, given)?,
        _ => {
            let known = "approle, jwt, kubernetes, cert, userpass, token";
            return Err(usage(&format!("-auth-method {method:?} is not one of {known}")));
        }
    };
    Ok(json!({name: way}))
}

impl Flags {
    fn method(&self) -> Result<&str, Error> {
        if let Some(method) = self.auth_method.as_deref() {
            return Ok(method);
        }
        let by = [
            (&self.approle_role_id, "approle"),
            (&self.jwt_role, "jwt"),
            (&self.vault_k8s_role, "kubernetes"),
            (&self.cert_file, "cert"),
            (&self.cert_pem, "cert"),
            (&self.userpass_username, "userpass"),
            (&self.token, "token"),
            (&self.token_path, "token"),
        ];
        let found = by.iter().find(|(flag, _)| flag.is_some()).map(|(_, method)| *method);
        found.ok_or_else(|| usage("-auth-method is missing, or the flags of one"))
    }

    fn mount(&self, way: &mut Value, own: &Option<String>) {
        put(way, "mount", own.as_deref().or(self.auth_mount.as_deref()));
    }

    fn approle(&self, way: &mut Value, given: &mut Given) -> Result<&'static str, Error> {
        self.mount(way, &self.approle_mount);
        put(way, "roleId", self.approle_role_id.as_deref());
        put(way, "secretIdFile", path(self.approle_secret_id_path.as_ref())?.as_deref());
        let wrapped = path(self.approle_wrapped_secret_id_path.as_ref())?;
        put(way, "wrappedSecretIdFile", wrapped.as_deref());
        if self.approle_secret_id_path.is_none() && wrapped.is_none() {
            given.secret_id = secret(&self.approle_secret_id, way);
        }
        Ok("appRole")
    }

    fn jwt(&self, way: &mut Value, name: &'static str) -> Result<&'static str, Error> {
        self.mount(
            way,
            if self.jwt_mount.is_some() { &self.jwt_mount } else { &self.vault_k8s_mount },
        );
        put(way, "role", self.jwt_role.as_deref().or(self.vault_k8s_role.as_deref()));
        let default = SERVICE_ACCOUNT.to_owned();
        let file = path(Some(self.jwt_token_path.as_ref().unwrap_or(&default)))?;
        put(way, "tokenFile", file.as_deref());
        Ok(name)
    }

    fn cert(&self, way: &mut Value) -> Result<&'static str, Error> {
        self.mount(way, &self.cert_mount);
        put(way, "role", self.cert_role.as_deref());
        let file = path(self.cert_file.as_ref().or(self.cert_pem.as_ref()))?;
        put(way, "certFile", file.as_deref());
        put(way, "keyFile", path(self.cert_key.as_ref())?.as_deref());
        Ok("cert")
    }

    fn userpass(&self, way: &mut Value, given: &mut Given) -> Result<&'static str, Error> {
        self.mount(way, &self.userpass_mount);
        put(way, "username", self.userpass_username.as_deref());
        put(way, "passwordFile", path(self.userpass_password_path.as_ref())?.as_deref());
        if self.userpass_password_path.is_none() {
            // Blanks may be a part of it.
            let password = self.userpass_password.as_ref();
            given.password = password.map(|text| Secret::new(text.clone().into_bytes()));
            if given.password.is_some() {
                way["given"] = true.into();
            }
        }
        Ok("userpass")
    }

    fn token(&self, way: &mut Value, given: &mut Given) -> Result<&'static str, Error> {
        put(way, "file", path(self.token_path.as_ref())?.as_deref());
        if self.token_path.is_none() {
            given.token = secret(&self.token, way);
        }
        Ok("token")
    }
}

/// Takes a secret out of the flags, and leaves word that there was one.
fn secret(flag: &Option<String>, way: &mut Value) -> Option<Secret> {
    let secret = flag.as_deref()?.trim();
    way["given"] = true.into();
    Some(Secret::new(secret.as_bytes().to_vec()))
}
