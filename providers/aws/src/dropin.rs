//! The command line of `sidekey-aws`: that of kubernetes-sigs/aws-encryption-provider.

pub(crate) mod environment;
pub(crate) mod retries;

use clap::Args;
use serde_json::{Map, Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, Output, RotateCommand, complain, rotate};
use sidekey_rest::Address;

use crate::Aws;
use crate::dropin::environment::Environment;

/// Where the replaced plugin listens unless told otherwise.
const LISTEN: &str = "/var/run/kmsplugin/socket.sock";
/// HyperShift's sockets. Its sidecars are ordinary containers in the pod of kube-apiserver, and are
/// told to end at the same moment; nobody there can give them more flags. Elsewhere the replaced
/// plugin is in a pod of its own, where to wait for kube-apiserver would put off its update.
const HYPERSHIFT: [&str; 2] = ["awskmsactive.sock", "awskmsbackup.sock"];
/// The time that HyperShift gives its pods to end, 135 s, less the time to drain.
const LINGER: &str = "125s";
/// What a retry costs in tokens: the old limits counted retries themselves.
const RETRY_COST: u32 = 5;

/// Keys, described by the flags of the replaced plugin.
#[derive(Debug, Args)]
pub struct Flags {
    /// Key (ARN, id or alias); a comma list, or repeated, for several keys
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    key: Vec<String>,
    /// Socket of the key; as many as there are keys [default: /var/run/kmsplugin/socket.sock]
    #[arg(long, value_name = "SOCKET", value_delimiter = ',')]
    listen: Vec<String>,
    /// Region of the keys [default: that of the ARN, AWS_REGION, the profile or the instance]
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Endpoint of KMS in the place of AWS's own
    #[arg(long, value_name = "URL")]
    kms_endpoint: Option<String>,
    /// Encryption context as a=b,c=d; repeated, the first is for the first key and so on
    #[arg(long, value_name = "CONTEXT")]
    encryption_context: Vec<String>,
    /// Resource on whose behalf the keys are used, for key policies that ask for it
    #[arg(long, value_name = "ARN")]
    source_arn: Option<String>,
    /// Address of /healthz, /livez and /metrics, plain [default: :8080]
    #[arg(long, value_name = "[IP]:PORT")]
    health_port: Option<String>,
    /// Path that is ok while every key works
    #[arg(long, value_name = "PATH", default_value = "/healthz")]
    healthz_path: String,
    /// Path that is ok while the process runs
    #[arg(long, value_name = "PATH", default_value = "/livez")]
    livez_path: String,
    /// Retry tokens; a retry costs 5 of them, a success brings back 1
    #[arg(long, value_name = "N")]
    retry_token_capacity: Option<u32>,
    /// Let plain HTTP leave this machine: something else protects the way
    #[arg(long)]
    allow_plaintext: bool,
    /// Log at level debug
    #[arg(long)]
    debug: bool,
    /// Taken for compatibility: health never depends on the version of the protocol
    #[arg(long, value_name = "VERSION", hide = true)]
    health_kms_version: Option<String>,
    /// Deprecated in the replaced plugin: makes a limit of retries together with --burst-limit
    #[arg(long, value_name = "N", hide = true)]
    qps_limit: Option<u32>,
    /// Deprecated in the replaced plugin
    #[arg(long, value_name = "N", hide = true)]
    burst_limit: Option<u32>,
}

impl CommandLine for Aws {
    const ABOUT: &'static str =
        "KMS v2 provider for AWS KMS, a drop-in for kubernetes-sigs/aws-encryption-provider";
    const EXAMPLES: &'static str = "Examples:
  sidekey-aws --config aws.yaml
  sidekey-aws check --config aws.yaml --connect
  sidekey-aws rotate --config aws.yaml --key 1
  sidekey-aws --key=arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab --listen=/var/run/kmsplugin/kms.sock --health-port=:8080
  sidekey-aws --key=alias/new,alias/old --region=us-east-1 --listen=/var/run/awskmsactive.sock,/var/run/awskmsbackup.sock

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = RotateCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let Flags { key: keys, listen, .. } = flags;
        if keys.is_empty() {
            return match flags.lonely() {
                None => Ok(None),
                Some(flag) => Err(bad(format!("{flag} needs --key"))),
            };
        }
        let usual = [LISTEN.to_owned()];
        let sockets = if listen.is_empty() && keys.len() == 1 { &usual[..] } else { listen };
        if keys.len() != sockets.len() {
            let (keys, sockets) = (keys.len(), sockets.len());
            return Err(bad(format!(
                "--key names {keys} keys but --listen {sockets} sockets: give one for each"
            )));
        }
        let keys = keys.iter().zip(sockets).enumerate();
        let keys = keys.map(|(index, (key, socket))| flags.document(index, key, socket));
        Ok(Some(Value::Array(keys.collect::<Result<_, _>>()?)))
    }

    fn process(flags: &Flags) -> Value {
        let address = flags.health_port.as_deref();
        let mut health = json!({
            "address": address.unwrap_or(":8080"),
            "healthz": flags.healthz_path,
            "livez": flags.livez_path,
            "metrics": "/metrics",
        });
        if address.is_none() {
            health["optional"] = true.into();
        }
        let mut document = json!({"health": [health]});
        let of_hypershift = |socket: &String| {
            socket.rsplit('/').next().is_some_and(|name| HYPERSHIFT.contains(&name))
        };
        if flags.listen.iter().any(of_hypershift) {
            document["linger"] = LINGER.into();
        }
        if flags.debug {
            document["log"] = json!({"level": "debug"});
        }
        document
    }

    fn prepare(flags: &Flags) -> Result<(), Error> {
        let plain = |url: &&String| Address::parse(url).is_ok_and(|address| address.is_exposed());
        if let Some(url) = flags.kms_endpoint.as_ref().filter(plain) {
            complain(&format!("warning: keys go to {url} in plain text: use https"));
        }
        if Environment::process().has_static_keys() {
            complain(
                "warning: keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY can be read by whoever sees the environment and never change: use files",
            );
        }
        Ok(())
    }

    fn output(command: &RotateCommand) -> Output {
        command.output()
    }

    fn execute(command: RotateCommand) -> Result<Answer, Error> {
        rotate::<Self>(command)
    }
}

impl Flags {
    /// A flag that means nothing without a key.
    fn lonely(&self) -> Option<&'static str> {
        let given = [
            ("--listen", !self.listen.is_empty()),
            ("--region", self.region.is_some()),
            ("--kms-endpoint", self.kms_endpoint.is_some()),
            ("--encryption-context", !self.encryption_context.is_empty()),
            ("--source-arn", self.source_arn.is_some()),
            ("--allow-plaintext", self.allow_plaintext),
            ("--health-port", self.health_port.is_some()),
            ("--retry-token-capacity", self.retry_token_capacity.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    fn document(&self, index: usize, key: &str, socket: &str) -> Result<Value, Error> {
        let mut kek = json!({"key": key});
        let mut settings = Map::new();
        if let Some(region) = self.region.as_deref().filter(|region| !region.is_empty()) {
            kek["region"] = region.into();
        }
        let context = self.context(index)?;
        if !context.is_empty() {
            kek["encryptionContext"] = context.into();
        }
        let texts = [("endpoint", &self.kms_endpoint), ("sourceArn", &self.source_arn)];
        for (field, text) in texts {
            if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
                settings.insert(field.into(), text.into());
            }
        }
        // Whoever names such an endpoint here has seen it, and the replaced plugin takes it too.
        let plain = self.kms_endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
        if plain || self.allow_plaintext {
            settings.insert("allowPlaintext".into(), true.into());
        }
        if let Some(tokens) = self.retry_tokens() {
            settings.insert("retryTokens".into(), tokens.into());
        }
        let id = (index + 1).to_string();
        Ok(json!({"id": id, "type": "aws", "listen": socket, "kek": kek, "settings": settings}))
    }

    /// The context of one key: its own one of those that are given, as the replaced plugin has it.
    fn context(&self, index: usize) -> Result<Map<String, Value>, Error> {
        // Its older versions joined them, its newer ones take the first: what it has written
        // would not open with the wrong one.
        if self.key.len() == 1 && self.encryption_context.len() > 1 {
            return Err(bad(
                "--encryption-context is given more than once for one key: write all \
                            names that count in one, as in a=b,c=d"
                    .to_owned(),
            ));
        }
        let Some(text) = self.encryption_context.get(index) else { return Ok(Map::new()) };
        let pairs = fields(text.trim_matches(['[', ']'])).ok_or_else(|| {
            bad(format!("--encryption-context: the quotes in {text:?} do not match"))
        })?;
        let read = |pair: &String| {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                bad(format!("--encryption-context: {pair:?} is not of the form name=value"))
            })?;
            Ok((name.to_owned(), value.into()))
        };
        pairs.iter().filter(|pair| !pair.is_empty()).map(read).collect()
    }

    fn retry_tokens(&self) -> Option<u32> {
        let old = self.qps_limit.filter(|qps| *qps > 0);
        let old = old.map(|qps| {
            qps.saturating_add(self.burst_limit.unwrap_or(0)).saturating_mul(RETRY_COST)
        });
        self.retry_token_capacity.filter(|tokens| *tokens > 0).or(old)
    }
}

/// The fields of a line of CSV, which is how the replaced plugin reads it: `"a=b"`, with quotes
/// that no shell has taken off, is `a=b`, and `"a=b,c"` is one field.
fn fields(line: &str) -> Option<Vec<String>> {
    let (mut fields, mut rest) = (Vec::new(), line);
    loop {
        let mut field = String::new();
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted;
            loop {
                let (part, after) = rest.split_once('"')?;
                field.push_str(part);
                match after.strip_prefix('"') {
                    Some(more) => {
                        field.push('"');
                        rest = more;
                    }
                    None => {
                        rest = after;
                        break;
                    }
                }
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            field.push_str(&rest[..end]);
            rest = &rest[end..];
            if field.contains('"') {
                return None;
            }
        }
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return rest.is_empty().then_some(fields),
        }
    }
}

fn bad(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests;
