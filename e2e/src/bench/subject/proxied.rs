//! The socket proxy, as a shim on another node meets it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Launch, Subject, Yardstick, given, key_socket, provider};
use crate::bench::bars;
use crate::bench::reach::Reach;
use crate::binaries;
use crate::pki::Authority;
use crate::ports::Port;

pub(super) const PROGRAM: &str = "sidekey-proxy";

/// The name in the client's certificate.
const CLIENT: &str = "shim.example";

/// The proxy before the local provider, reached by mutual TLS.
pub(super) fn proxy(dir: &Path) -> Result<Subject> {
    let authority = Authority::new("benchmark")?;
    let (server, client) =
        (authority.server(dir, "proxy")?, authority.peer(dir, "client", &[CLIENT])?);
    let port = Port::free()?;
    let config = dir.join("proxy.yaml");
    let document = json!({
        "listen": port.address(),
        "plugin": format!("unix://{}", key_socket(dir, 1).display()),
        "tls": {"ca": authority.file(dir)?, "cert": server.certificate, "key": server.key},
        "clients": [{"san": CLIENT, "allow": ["status", "encrypt", "decrypt"]}],
    });
    std::fs::write(&config, document.to_string())
        .with_context(|| format!("cannot write {}", config.display()))?;
    let measured = Launch {
        program: binaries::path(PROGRAM)?,
        args: vec!["--config".to_owned(), config.to_string_lossy().into_owned()],
        reach: Reach::Tls(Arc::new(port), authority.connector_with(&client)?),
        log: dir.join("proxy.log"),
        isolated: false,
    };
    let behind = vec![provider(dir, &[1])?];
    let subject = given(PROGRAM, &[], dir)?;
    Ok(Subject { behind, measured, yardstick: Yardstick::Behind, bars: bars::PROXY, ..subject })
}
