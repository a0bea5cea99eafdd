//! The admin endpoints on the network, for callers who show a certificate.

use std::sync::Arc;

use arc_swap::ArcSwap;
use sidekey_core::process::{listen, serve_admin_over};
use sidekey_core::server::{MAX_ADMIN, Stopper, accept, stopper};
use sidekey_core::telemetry::LevelHandle;
use sidekey_core::{Connections, Error};

use crate::config::{AdminTls, ShimConfig};
use crate::engine::Engine;
use crate::tls::{MAX_STRANGERS, Protocol};

/// Who may call: the list of the configuration in use.
pub(crate) struct AllowList(ArcSwap<Vec<String>>);

impl AllowList {
    pub(crate) fn new(config: &ShimConfig) -> Self {
        Self(ArcSwap::new(Self::of(config)))
    }

    /// The list of another configuration counts from now on.
    pub(crate) fn follow(&self, config: &ShimConfig) {
        self.0.store(Self::of(config));
    }

    fn admits(&self, names: &[String]) -> bool {
        let allowed = self.0.load();
        names.iter().any(|name| allowed.contains(name))
    }

    fn of(config: &ShimConfig) -> Arc<Vec<String>> {
        Arc::new(config.admin_tls.as_ref().map(|tls| tls.allow.clone()).unwrap_or_default())
    }
}

/// The admin endpoints for callers on the network, who must show a certificate, until the stopper
/// is dropped. Those who have not shown one take no place from others.
pub(crate) async fn serve_admin_tls(
    tls: &AdminTls,
    engine: &mut Engine,
    level: LevelHandle,
    allow: Arc<AllowList>,
) -> Result<Stopper, Error> {
    // They never prevent the start: without certificates they are closed to everybody.
    let identity = engine.identities.get_or_wait(&tls.files);
    let hint = "choose another address for adminTls";
    let mut listener = listen("adminTls address", tls.listen, hint).await?;
    let address = listener.local_addr().unwrap_or(tls.listen);
    tracing::info!(%address, "admin listening with mutual TLS");
    let (shared, (stopper, mut stop)) = (engine.shared.clone(), stopper());
    let strangers = Connections::limited("adminTls strangers", MAX_STRANGERS);
    let callers = Connections::limited("adminTls", MAX_ADMIN);
    tokio::spawn(async move {
        let serving = accept(&mut listener, &mut stop, |stream, peer| {
            let (identity, allow, shared, level) =
                (identity.clone(), allow.clone(), shared.clone(), level.clone());
            let (stranger, callers) = (strangers.enter(), callers.clone());
            async move {
                let Some(stranger) = stranger else { return };
                let shaken = tokio::select! {
                    shaken = identity.accept(stream, Protocol::Http1) => shaken,
                    _ = stranger.ordered() => return,
                };
                drop(stranger);
                match shaken {
                    Ok((stream, caller)) if allow.admits(&caller.sans) => {
                        if let Some(slot) = callers.enter() {
                            serve_admin_over(stream, shared, level, slot).await;
                        }
                    }
                    Ok(_) => tracing::warn!(%peer, "admin caller is not on the allow-list"),
                    Err(error) => {
                        tracing::debug!(%peer, error = %error.error.report(), "admin handshake failed")
                    }
                }
            }
        });
        serving.await;
    });
    Ok(stopper)
}
