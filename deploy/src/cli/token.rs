//! `sidekey token`: keeps a token of a service account in a file.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use serde::Serialize;
use sidekey_core::config::parse_duration;

use crate::cluster::{Access, server};
use crate::model::Account;
use crate::token::{self, Event, Order, Pace, Written};
use crate::{Console, Error, Exit, Report};

/// Keep a fresh token of a service account in a file
///
/// The API server of the kubeconfig mints it: for a provider of a hosted control plane, which logs
/// in at its vendor with a token of the hosted cluster. The file is replaced in one step when four
/// fifths of the token's life are over. While the API server is not there it is tried again and
/// again. The kubeconfig is read anew for each token, and a changed one is noticed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey token --kubeconfig /var/secrets/localhost-kubeconfig/kubeconfig \\
      --service-account-name kms-provider --token-audience openshift \\
      --token-file /var/run/secrets/openshift/serviceaccount/token
  sidekey token --kubeconfig hosted.kubeconfig --service-account-name kms-provider \\
      --token-file /tmp/token --once -o json

Exit codes: 0 the token is written, or it was told to end, 1 no token came in time, 64 bad usage,
or the API server refuses what was asked for.")]
pub(super) struct Args {
    #[command(flatten)]
    access: Access,
    /// Ask there, with the kubeconfig's name and credentials
    #[arg(long, value_name = "https://HOST:PORT", value_parser = server)]
    server: Option<Uri>,
    /// Namespace of the service account
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    service_account_namespace: String,
    /// The service account; it is made if it is not there
    #[arg(long, value_name = "NAME")]
    service_account_name: String,
    /// Never make the service account
    #[arg(long)]
    no_create: bool,
    /// Whom the token is for
    #[arg(long, value_name = "NAME", default_value = "openshift")]
    token_audience: String,
    /// Where the token goes; its directory must be there
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// How long a token is asked for; the API server may give less
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    expiry: Duration,
    /// Write one token and end
    #[arg(long, visible_alias = "oneshot")]
    once: bool,
    /// With --once: how long to try
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    wait: Duration,
}

/// What is said of a token: never the token.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    kind: &'static str,
    file: String,
    service_account: String,
    audience: &'a str,
    expires: String,
    created: bool,
}

pub(super) async fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let order = args.order()?;
    let failed = |event: &Event<'_>| {
        if let Event::Failed { error, again } = event {
            let hint = error.advice().map(|hint| format!(" ({hint})")).unwrap_or_default();
            let text = format!("{}{hint}; again in {:.1} s", error.report(), again.as_secs_f64());
            console.warn(&text);
        }
    };
    if args.once {
        let written = token::once(&order, Pace::default(), args.wait, |event| failed(&event));
        let written = tokio::select! {
            written = written => written?,
            () = super::migrate::signalled() => return Err(Error::failed("stopped at once")),
        };
        console.answer(&Answer::new(&order, &written))?;
        return Ok(Exit::Success);
    }
    let tell = |event: Event<'_>| {
        failed(&event);
        if let Event::Written(written) = event
            && let Err(error) = console.answer(&Answer::new(&order, written))
        {
            console.warn(&error.report());
        }
    };
    tokio::select! {
        () = token::keep(&order, Pace::default(), tell) => {}
        () = super::migrate::signalled() => {}
    }
    Ok(Exit::Success)
}

impl Args {
    fn order(&self) -> Result<Order, Error> {
        if self.token_audience.is_empty() {
            return Err(Error::usage("--token-audience is empty").hint("whom is the token for?"));
        }
        if self.expiry.is_zero() {
            return Err(Error::usage("--expiry must be longer than zero"));
        }
        let account = Account {
            namespace: self.service_account_namespace.clone(),
            name: self.service_account_name.clone(),
        };
        Ok(Order {
            access: self.access.clone(),
            server: self.server.clone(),
            account,
            audience: self.token_audience.clone(),
            expiry: self.expiry,
            file: self.token_file.clone(),
            create: !self.no_create,
        })
    }
}

impl<'a> Answer<'a> {
    fn new(order: &'a Order, written: &Written) -> Self {
        Self {
            kind: "Token",
            file: order.file.display().to_string(),
            service_account: order.account.to_string(),
            audience: &order.audience,
            expires: humantime::format_rfc3339_seconds(written.expires).to_string(),
            created: written.created,
        }
    }
}

impl Report for Answer<'_> {
    fn text(&self, _console: &Console) -> String {
        let made = if self.created { ", which was made for it" } else { "" };
        let Self { file, service_account, audience, expires, .. } = self;
        format!(
            "a token of {service_account}{made} for {audience} is in {file}, good until {expires}"
        )
    }
}
