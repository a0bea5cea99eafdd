//! The command line of `sidekey-aws`: that of kubernetes-sigs/aws-encryption-provider.

pub(crate) mod environment;
pub(crate) mod retries;

use serde_json::{Map, Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, Output, RotateCommand, complain, rotate};
use sidekey_rest::Address;
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use, place};

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

/// The flags of the replaced plugin.
pub struct Replaced;

/// Keys, described by them.
pub(crate) type Flags = kit::Flags<Replaced>;

const fn flag(name: &'static str, value: &'static str, help: &'static str, use_: Use) -> Flag {
    Flag { name, aliases: &[], value, help, use_ }
}

#[rustfmt::skip]
impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("key", "KEY", "Key (ARN, id or alias); a comma list, or repeated, for several keys", Use::Named),
        flag("listen", "SOCKET", "Socket of the key; as many as there are keys [default: /var/run/kmsplugin/socket.sock]", Use::Named),
        flag("region", "REGION", "Region of the keys [default: that of the ARN, AWS_REGION, the profile or the instance]", Use::Text("kek.region")),
        flag("kms-endpoint", "URL", "Endpoint of KMS in the place of AWS's own", Use::Text("settings.endpoint")),
        flag("encryption-context", "CONTEXT", "Encryption context as a=b,c=d; repeated, the first is for the first key and so on", Use::Named),
        flag("source-arn", "ARN", "Resource on whose behalf the keys are used, for key policies that ask for it", Use::Text("settings.sourceArn")),
        flag("health-port", "[IP]:PORT", "Address of /healthz, /livez and /metrics, plain [default: :8080]", Use::Named),
        flag("healthz-path", "PATH", "Path that is ok while every key works [default: /healthz]", Use::Named),
        flag("livez-path", "PATH", "Path that is ok while the process runs [default: /livez]", Use::Named),
        flag("retry-token-capacity", "N", "Retry tokens; a retry costs 5 of them, a success brings back 1", Use::Named),
        flag("allow-plaintext", "", "Let plain HTTP leave this machine: something else protects the way", Use::Named),
        flag("debug", "", "Log at level debug", Use::Named),
        // Health never depends on the version of the protocol.
        flag("health-kms-version", "VERSION", "", Use::Ignored),
        // Deprecated there: both together make a limit of retries.
        flag("qps-limit", "N", "", Use::Named),
        flag("burst-limit", "N", "", Use::Named),
    ];
}

/// Flags that say nothing of a key; the others need one.
const OF_PROCESS: [&str; 6] =
    ["healthz-path", "livez-path", "debug", "health-kms-version", "qps-limit", "burst-limit"];

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
        let (keys, listen) = (list(flags, "key"), list(flags, "listen"));
        if keys.is_empty() {
            let mut given = Replaced::FLAGS.iter().map(|flag| flag.name);
            let lonely = given.find(|name| flags.get(name).is_some() && !OF_PROCESS.contains(name));
            return match lonely {
                None => Ok(None),
                Some(name) => Err(bad(format!("--{name} needs --key"))),
            };
        }
        let sockets = if listen.is_empty() && keys.len() == 1 { vec![LISTEN] } else { listen };
        if keys.len() != sockets.len() {
            let (keys, sockets) = (keys.len(), sockets.len());
            return Err(bad(format!(
                "--key names {keys} keys but --listen {sockets} sockets: give one for each"
            )));
        }
        let contexts = flags.all("encryption-context");
        // Its older versions joined them, its newer ones take the first: what it has written
        // would not open with the wrong one.
        if keys.len() == 1 && contexts.len() > 1 {
            return Err(bad(
                "--encryption-context is given more than once for one key: write all \
                            names that count in one, as in a=b,c=d"
                    .to_owned(),
            ));
        }
        let document = |(index, (key, socket)): (usize, (&&str, &str))| {
            let mut document = json!({
                "id": (index + 1).to_string(), "type": "aws", "listen": socket,
                "kek": {"key": key}, "settings": {},
            });
            flags.fill(&mut document)?;
            let context = context(contexts.get(index).map_or("", String::as_str))?;
            if !context.is_empty() {
                place(&mut document, "kek.encryptionContext", context.into());
            }
            if let Some(tokens) = retry_tokens(flags)? {
                place(&mut document, "settings.retryTokens", tokens.into());
            }
            // Whoever names a plain endpoint here has seen it, and the replaced plugin takes it.
            let plain = flags.get("kms-endpoint").is_some_and(is_exposed);
            if plain || flags.is_on("allow-plaintext") {
                place(&mut document, "settings.allowPlaintext", true.into());
            }
            Ok(document)
        };
        let keys = keys.iter().zip(sockets).enumerate().map(document);
        Ok(Some(Value::Array(keys.collect::<Result<_, Error>>()?)))
    }

    fn process(flags: &Flags) -> Value {
        let address = flags.get("health-port");
        let mut health = json!({
            "address": address.unwrap_or(":8080"),
            "healthz": flags.get("healthz-path").unwrap_or("/healthz"),
            "livez": flags.get("livez-path").unwrap_or("/livez"),
            "metrics": "/metrics",
        });
        if address.is_none() {
            health["optional"] = true.into();
        }
        let mut document = json!({"health": [health]});
        let of_hypershift = |socket: &&str| {
            socket.rsplit('/').next().is_some_and(|name| HYPERSHIFT.contains(&name))
        };
        if list(flags, "listen").iter().any(of_hypershift) {
            document["linger"] = LINGER.into();
        }
        if flags.is_on("debug") {
            document["log"] = json!({"level": "debug"});
        }
        document
    }

    fn prepare(flags: &Flags) -> Result<(), Error> {
        if let Some(url) = flags.get("kms-endpoint").filter(|url| is_exposed(url)) {
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

/// Whether what is sent there can be read on the way.
fn is_exposed(url: &str) -> bool {
    Address::parse(url).is_ok_and(|address| address.is_exposed())
}

/// All values of a flag that takes comma lists and may be repeated.
fn list<'a>(flags: &'a Flags, name: &str) -> Vec<&'a str> {
    let values = flags.all(name).iter().flat_map(|value| value.split(','));
    values.filter(|value| !value.is_empty()).collect()
}

/// The encryption context of one key, as the replaced plugin reads it.
fn context(text: &str) -> Result<Map<String, Value>, Error> {
    let pairs = fields(text.trim_matches(['[', ']']))
        .ok_or_else(|| bad(format!("--encryption-context: the quotes in {text:?} do not match")))?;
    let read = |pair: &String| {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            bad(format!("--encryption-context: {pair:?} is not of the form name=value"))
        })?;
        Ok((name.to_owned(), value.into()))
    };
    pairs.iter().filter(|pair| !pair.is_empty()).map(read).collect()
}

fn retry_tokens(flags: &Flags) -> Result<Option<u32>, Error> {
    let number = |name: &str| {
        let number = flags.get(name).map(str::parse::<u32>).transpose();
        number.map_err(|_| bad(format!("--{name} is no number")))
    };
    let tokens = number("retry-token-capacity")?.filter(|tokens| *tokens > 0);
    let (qps, burst) = (number("qps-limit")?, number("burst-limit")?);
    let old = qps.filter(|qps| *qps > 0);
    let old = old.map(|qps| qps.saturating_add(burst.unwrap_or(0)).saturating_mul(RETRY_COST));
    Ok(tokens.or(old))
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
