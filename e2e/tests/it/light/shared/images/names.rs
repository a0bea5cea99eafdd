//! Names are resolved inside an image by nothing but the two files that kubelet writes, and
//! servers are trusted by the CA roots in it.
//!
//! OpenBao is a real one; it is reached in the container's network through a forwarder. The
//! cluster's DNS is simulated by a few lines.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sidekey_e2e::netns::Host;
use sidekey_e2e::openbao::NAMED;
use sidekey_e2e::{OpenBao, Scratch};

use super::built::one;
use super::run::Unpacked;

/// A Service in another namespace, as its neighbours call it, and its whole name.
const SERVICE: &str = "openbao.vault";
const SERVICE_FULL: &str = "openbao.vault.svc.cluster.local";

const PORT: u16 = 8200;

/// A host whose port leads to a real server, and whose DNS knows one name.
struct Network {
    host: Host,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Network {
    async fn start(scratch: &Scratch, server: SocketAddr) -> Self {
        let host = Host::create(scratch.path()).await.unwrap();
        let sockets = host.on(|| {
            let forwarder = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
            let dns = UdpSocket::bind((host.address(), 53))?;
            forwarder.set_nonblocking(true)?;
            dns.set_nonblocking(true)?;
            Ok((forwarder, dns))
        });
        let (forwarder, dns) = sockets.unwrap();
        let asked = Arc::default();
        tokio::spawn(forward(tokio::net::TcpListener::from_std(forwarder).unwrap(), server));
        let dns = tokio::net::UdpSocket::from_std(dns).unwrap();
        tokio::spawn(answer(dns, Arc::clone(&asked)));
        Self { host, asked }
    }
}

async fn forward(listener: tokio::net::TcpListener, server: SocketAddr) {
    while let Ok((mut near, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut far = tokio::net::TcpStream::connect(server).await.unwrap();
            // Either side may hang up at any time.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
    }
}

/// A name server (RFC 1035) for one name, which has an IPv4 address.
async fn answer(socket: tokio::net::UdpSocket, asked: Arc<Mutex<Vec<String>>>) {
    let mut packet = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut packet).await {
        let query = &packet[..length];
        let (mut name, mut at) = (Vec::new(), 12);
        while query[at] != 0 {
            let end = at + 1 + usize::from(query[at]);
            name.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
            at = end;
        }
        let question = &query[12..at + 5];
        let name = name.join(".");
        let (known, wants_ipv4) = (name == SERVICE_FULL, query[at + 2] == 1);
        let found = known && wants_ipv4;
        // The same id; an answer, from a server that has authority; "no such name" is 3.
        let mut reply = query[..2].to_vec();
        reply.extend([0x85, if known { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(found), 0, 0, 0, 0]);
        reply.extend(question);
        if found {
            // The name of the question, type A, class IN, a minute, four bytes.
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        asked.lock().unwrap().push(name);
        socket.send_to(&reply, from).await.unwrap();
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test]
async fn a_provider_finds_its_kms_by_hosts_file_and_by_cluster_dns_and_trusts_the_roots() {
    let scratch = Scratch::new("names").unwrap();
    let server = OpenBao::start(&scratch, "bao").await.unwrap();
    server.root().enable("transit", "transit").await.unwrap();
    server.root().make_key("transit", "kms").await.unwrap();
    let token = server.root().write("auth/token/create", &json!({"ttl": "1h"})).await.unwrap();
    let address = server.named_address().strip_prefix("https://").unwrap().parse().unwrap();
    let network = Network::start(&scratch, address).await;

    let unpacked = Unpacked::new(one("vault").await, &scratch);
    unpacked.write("run/token", token["auth"]["client_token"].as_str().unwrap());
    unpacked.write(
        "etc/hosts",
        &format!(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
             {}\tkube-apiserver\n\n# Entries added by HostAliases.\n127.0.0.1\t{NAMED}\n",
            network.host.address()
        ),
    );
    unpacked.write(
        "etc/resolv.conf",
        &format!(
            "search clusters-a.svc.cluster.local svc.cluster.local cluster.local\n\
             nameserver {}\noptions ndots:5\n",
            network.host.address()
        ),
    );
    let check = async |name: &str| {
        let config = json!({"keys": [{
            "id": 1, "type": "vault", "listen": "unix:///run/kms.sock",
            "kek": {"mount": "transit", "key": "kms"},
            "settings": {
                "address": format!("https://{name}:{PORT}"),
                "tls": {"serverName": NAMED}, "connectTimeout": "20s", "requestTimeout": "20s",
            },
            "credentials": {"token": {"file": "/run/token"}},
        }]});
        unpacked.write("run/vault.yaml", &config.to_string());
        let arguments = ["check", "--connect", "--config", "/run/vault.yaml"];
        unpacked.run(Some(&network.host), &arguments).await
    };

    // The roots of the image are found, and this server's is none of them.
    let refused = check(NAMED).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(said(&refused).contains("UnknownIssuer"), "{}", said(&refused));
    // Where they are is where the provider looks.
    unpacked.write("etc/ssl/certs/ca-certificates.crt", &server.authority().pem());
    let found = check(NAMED).await;
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    assert!(network.asked.lock().unwrap().is_empty(), "the hosts file has that name");

    let found = check(SERVICE).await;
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let asked = network.asked.lock().unwrap().clone();
    assert!(asked.iter().any(|name| name == SERVICE_FULL), "{asked:?}");

    let unknown = check("no.such.name").await;
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    assert!(said(&unknown).contains("no.such.name"), "{}", said(&unknown));
}
