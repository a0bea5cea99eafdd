//! The admin endpoints on the network, for callers who show a certificate.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use sidekey_core::process::serve_admin_over;
use sidekey_core::telemetry::LevelHandle;
use sidekey_core::{Error, Kind};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::{AdminTls, ShimConfig};
use crate::engine::Engine;
use crate::tls::Protocol;

/// Callers at a time.
const MAX_ADMIN_CONNECTIONS: usize = 64;

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

/// The admin endpoints for callers on the network, who must show a certificate.
pub(crate) async fn serve_admin_tls(
    tls: &AdminTls,
    engine: &mut Engine,
    level: LevelHandle,
    allow: Arc<AllowList>,
) -> Result<(), Error> {
    let identity = engine.identity(&tls.files)?;
    let listener = TcpListener::bind(tls.listen).await.map_err(|error| {
        Error::new(Kind::Config, format!("cannot listen on adminTls address {}", tls.listen))
            .with_source(error)
    })?;
    let address = listener.local_addr().unwrap_or(tls.listen);
    tracing::info!(%address, "admin listening with mutual TLS");
    let shared = engine.shared.clone();
    let places = Arc::new(Semaphore::new(MAX_ADMIN_CONNECTIONS));
    tokio::spawn(async move {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Callers beyond the limit are let go: a scraper comes again.
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let (identity, allow, shared, level) =
                (identity.clone(), allow.clone(), shared.clone(), level.clone());
            tokio::spawn(async move {
                let _place = place;
                match identity.accept(stream, Protocol::Http1).await {
                    Ok((stream, caller)) if allow.admits(&caller.sans) => {
                        serve_admin_over(stream, shared, level).await;
                    }
                    Ok(_) => tracing::warn!(%peer, "admin caller is not on the allow-list"),
                    Err(error) => {
                        tracing::debug!(%peer, error = %error.error.report(), "admin handshake failed")
                    }
                }
            });
        }
    });
    Ok(())
}
