//! The command line of `sidekey-operator`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use sidekey_core::config::{LogFormat, LogOptions};

use crate::Error;
use crate::cluster::Access;
use crate::operator::context::Options;
use crate::operator::webhook::NativeImages;

/// Where it runs if nobody says so.
const NAMESPACE: &str = "sidekey-system";

/// Where the servers listen if nobody says so, by the names of the pod's ports.
pub(super) const ADDRESSES: [(&str, &str); 3] =
    [("webhook", "[::]:9443"), ("page", "[::]:8443"), ("probes", "[::]:8081")];

const EXAMPLES: &str = "Examples:
  sidekey-operator                                     # in its pod: all defaults
  sidekey-operator --image shim=registry.example/sidekey-shim:1 --image aws=registry.example/sidekey-aws:1
  sidekey-operator --kubeconfig admin.kubeconfig --namespace sidekey-system --concurrency 8

The page and the metrics are on --page-listen, for whoever the cluster lets see SecretEncryptions.

Exit codes: 0 told to end, 1 failed or lost the lease, 64 bad usage.";

/// Manages the encryption of control planes by their SecretEncryptions
#[derive(Debug, Parser)]
#[command(name = "sidekey-operator", version = crate::VERSION, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Namespace that the operator runs in [default: $POD_NAMESPACE, or sidekey-system]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Image of a program (shim, proxy, sidekey, or a vendor) where a SecretEncryption names
    /// none; may be repeated
    #[arg(long = "image", value_name = "NAME=IMAGE", value_parser = image)]
    images: Vec<(String, String)>,
    /// Image for the plugin of a vendor (azure) that HyperShift runs itself, in pods of namespaces
    /// with the label sidekey.dev/native-image=enabled. By digest, or as --image names it too
    #[arg(long = "native-image", value_name = "VENDOR=IMAGE", value_parser = image)]
    native_images: Vec<(String, String)>,
    /// How often a control plane with nothing to do is looked at
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    poll: Duration,
    /// Passes that run at once, for each kind of object
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    concurrency: u16,
    /// Address of the admission webhook
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESSES[0].1)]
    pub(super) webhook_listen: SocketAddr,
    /// Address of the page and of the metrics
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESSES[1].1)]
    pub(super) page_listen: SocketAddr,
    /// Address of the probes
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESSES[2].1)]
    pub(super) probe_listen: SocketAddr,
    #[command(flatten)]
    pub(super) access: Access,
    /// Log lines for people or for machines
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing::Level,
    /// How far apart the counts of a census must be
    #[arg(long, value_name = "TIME", hide = true, value_parser = time)]
    census_apart_for_tests: Option<Duration>,
}

impl Args {
    /// What reconcilers are told.
    pub(super) fn options(&self) -> Result<Options, Error> {
        let from_pod = || std::env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty());
        let namespace = self.namespace.clone().or_else(from_pod);
        let images: BTreeMap<String, String> = self.images.iter().cloned().collect();
        Ok(Options {
            namespace: namespace.unwrap_or_else(|| NAMESPACE.to_owned()),
            native_images: NativeImages::new(&self.native_images, &images)?,
            images,
            poll: self.poll,
            census_apart: self.census_apart_for_tests,
        })
    }

    /// Passes that run at once.
    pub(super) fn concurrency(&self) -> usize {
        self.concurrency.into()
    }

    /// How and what to log.
    pub(super) fn log(&self) -> LogOptions {
        LogOptions { format: self.log_format, level: self.log_level }
    }
}

fn image(text: &str) -> Result<(String, String), Error> {
    let wrong = || Error::usage("must be NAME=IMAGE, as in shim=registry.example/sidekey-shim:1");
    let (name, image) = text.split_once('=').ok_or_else(wrong)?;
    let sound = crate::model::is_name(name) && !image.is_empty();
    let plain = !image.contains(|c: char| c.is_whitespace() || c.is_control());
    (sound && plain).then(|| (name.to_owned(), image.to_owned())).ok_or_else(wrong)
}

fn time(text: &str) -> Result<Duration, Error> {
    let time = sidekey_core::config::parse_duration(text);
    let time = time.map_err(|error| Error::usage(error.to_string()))?;
    if time.is_zero() {
        return Err(Error::usage("must be more than nothing"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(["sidekey-operator"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn the_command_line_is_sound_and_shows_examples_but_not_what_is_for_tests() {
        Args::command().debug_assert();
        let help = Args::command().render_long_help().to_string();
        assert!(help.contains("Examples:") && help.contains("--webhook-listen"), "{help}");
        assert!(!help.contains("for-tests"), "{help}");
    }

    #[test]
    fn what_is_said_is_what_reconcilers_are_told() {
        let line = "--namespace ops --image shim=r/shim:2 --image aws=r:5000/aws@sha256:1 \
                    --poll 5s --census-apart-for-tests 100ms --concurrency 9";
        let args = parse(&line.replace('\\', "")).unwrap();
        let options = args.options().unwrap();
        assert_eq!(options.namespace, "ops");
        assert_eq!(options.images["aws"], "r:5000/aws@sha256:1");
        assert_eq!(options.images["shim"], "r/shim:2");
        assert_eq!(options.native_images, NativeImages::default(), "off unless it is said");
        assert_eq!(options.poll, Duration::from_secs(5));
        assert_eq!(options.census_apart, Some(Duration::from_millis(100)));
        assert_eq!(args.concurrency(), 9);
    }

    #[test]
    fn an_image_of_a_native_plugin_with_a_tag_alone_is_refused() {
        let tagged = "--native-image azure=r/azure:1";
        assert!(parse(tagged).unwrap().options().is_err());
        assert!(parse(&format!("{tagged} --image azure=r/azure:1")).unwrap().options().is_ok());
    }

    #[test]
    fn mistakes_are_told_before_anything_starts() {
        for line in [
            "--image shim",
            "--image =x",
            "--image shim=",
            "--image Shim=x",
            "--poll 0s",
            "--poll soon",
            "--concurrency 0",
            "--page-listen 8443",
            "--log-level loud",
            "extra",
        ] {
            let error = parse(line).err().map(|error| error.use_stderr());
            assert_eq!(error, Some(true), "{line}");
        }
    }
}
