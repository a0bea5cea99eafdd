//! The admin endpoints.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use aws_lc_rs::digest::{SHA256, digest};
use sidekey_core::hex;

use crate::support::{Home, Process, ask_socket, http, until};

#[tokio::test]
async fn probes_tell_apart_a_process_that_lives_and_a_key_that_works() {
    let home = Home::new();
    let flags: Vec<_> = home.flags().into_iter().filter(|flag| flag != "--create-key").collect();
    let process = Process::start(&flags);
    until("the first probe has failed", async || {
        process.get("/readyz").await.body.contains("does not exist").then_some(())
    })
    .await;
    assert_eq!(process.get("/livez").await.code, 200, "a restart does not bring a key back");
    for path in ["/readyz", "/healthz"] {
        let answer = process.get(path).await;
        assert_eq!(answer.code, 503, "{path}");
        assert!(answer.body.starts_with("key 1: "), "{path}: {}", answer.body);
    }
    assert_eq!(process.metric("kms_plugin_status_healthy{").await, Some(0.0));
    home.make_key("key");
    home.healthy("kms.sock").await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = process.get(path).await;
        assert_eq!((answer.code, answer.body.as_str()), (200, "ok\n"), "{path}");
    }
    assert_eq!(process.metric("kms_plugin_status_healthy{").await, Some(1.0));
    assert_eq!(process.get("/nowhere").await.code, 404);
    let address = process.admin().await;
    assert_eq!(http(TcpStream::connect(address).unwrap(), "POST", "/livez").code, 405);
    process.stop().await;
}

#[tokio::test]
async fn metrics_have_the_names_that_dashboards_know() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let mut sealed = kms.encrypt().await.unwrap();
    kms.decrypt(&sealed).await.unwrap();
    let key_id = std::mem::take(&mut sealed.key_id);
    kms.decrypt(&sealed).await.unwrap_err();
    let metrics = process.get("/metrics").await.body;
    let socket = home.at("kms.sock");
    let hash = format!("sha256:{}", hex(digest(&SHA256, key_id.as_bytes()).as_ref()));
    let healthy = format!("kms_plugin_status_healthy{{key=\"1\",endpoint=\"unix://{socket}\"}} 1");
    for line in [
        "kms_encrypt_requests_total{key=\"1\",code=\"OK\"} 1",
        "kms_decrypt_requests_total{key=\"1\",code=\"OK\"} 1",
        "kms_decrypt_requests_total{key=\"1\",code=\"InvalidArgument\"} 1",
        "kms_request_duration_seconds_count{key=\"1\",operation=\"encrypt\"} 1",
        "kms_request_duration_seconds_bucket{le=\"",
        "kms_errors_total{key=\"1\",kind=\"invalid\"} 1",
        "kms_errors_total{key=\"1\",kind=\"unavailable\"} 0",
        "kms_backend_calls_total{key=\"1\",operation=\"encrypt\",purpose=\"request\"} 1\n",
        // The check of what was encrypted, and one request; the other was not worth a call.
        "kms_backend_calls_total{key=\"1\",operation=\"decrypt\",purpose=\"request\"} 2\n",
        "kms_plugin_request_duration_seconds_count{key=\"1\",operation=\"decrypt\"}",
        "kms_plugin_request_duration_seconds_count{key=\"1\",operation=\"key_id\"}",
        "kms_reloads_total{key=\"1\",result=\"success\"} 1",
        "kms_reloads_total{key=\"1\",result=\"failure\"} 0",
        "kms_config_reloads_total{result=\"failure\"} 0",
        "kms_build_info{provider=\"local\",version=\"",
        "kms_fips_mode 0",
        &healthy,
        &format!("kms_plugin_key_id_hash_info{{key=\"1\",key_id_hash=\"{hash}\"}} 1"),
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"));
    process.stop().await;
}

#[tokio::test]
async fn status_shows_everything_but_secrets() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let sealed = home.kms("kms.sock").await.encrypt().await.unwrap();
    let status = process.status().await;
    let key = &status["keys"][0];
    assert_eq!(status["provider"], "local");
    assert_eq!(status["config"]["source"], "the command line");
    assert!(status["config"]["refused"].is_null());
    assert_eq!((&key["id"], &key["healthy"]), (&"1".into(), &true.into()));
    assert_eq!(key["endpoint"], format!("unix://{}", home.at("kms.sock")));
    assert_eq!(key["key_id"], sealed.key_id.as_str());
    assert!(key["key_id_hash"].as_str().unwrap().starts_with("sha256:"));
    assert!(key["reason"].is_null() && key["refused"].is_null() && key["last_error"].is_null());
    for time in
        [&status["started"], &status["config"]["loaded"], &key["since"], &key["last_success"]]
    {
        assert!(time.as_str().unwrap().ends_with('Z'), "{status:#}");
    }
    assert!(key["note"].as_str().unwrap().contains("development"), "it is honest: {key:#}");
    process.stop().await;
}

#[tokio::test]
async fn an_address_that_others_can_reach_serves_probes_and_nothing_else() {
    let home = Home::new();
    let mut flags = home.flags();
    *flags.last_mut().unwrap() = "0.0.0.0:0".into();
    let process = Process::start(&flags);
    home.healthy("kms.sock").await;
    let address = process.admin().await.replace("0.0.0.0", "127.0.0.1");
    let get = |path| http(TcpStream::connect(&address).unwrap(), "GET", path);
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(get(path).code, 200, "{path}");
    }
    for path in ["/metrics", "/status", "/", "/log-level"] {
        let answer = get(path);
        assert_eq!(answer.code, 403, "{path}");
        assert!(!answer.body.contains("kms_") && !answer.body.contains("key"), "{}", answer.body);
    }
    process.stop().await;
}

#[tokio::test]
async fn the_log_level_changes_on_the_admin_socket_alone() {
    let home = Home::new();
    let socket = home.path("admin.sock");
    let process = home.serve(&["--admin-socket", &home.at("admin.sock")]).await;
    let address = process.admin().await;
    let change = "/log-level?level=debug";
    assert_eq!(http(TcpStream::connect(&address).unwrap(), "PUT", change).code, 403);
    assert_eq!(ask_socket(&socket, "GET", "/log-level").body, "info\n");
    home.kms("kms.sock").await.encrypt_as("unseen").await.unwrap();
    assert_eq!(ask_socket(&socket, "PUT", "/log-level?level=loud").code, 400);
    assert_eq!(ask_socket(&socket, "PUT", change).code, 200);
    home.kms("kms.sock").await.encrypt_as("seen").await.unwrap();
    process.logs("uid=\"seen\"").await;
    assert!(!process.log().contains("unseen"));
    // All that can be read can be read there, too.
    assert!(ask_socket(&socket, "GET", "/metrics").body.contains("kms_build_info"));
    assert_eq!(ask_socket(&socket, "GET", "/status").code, 200);
    process.stop().await;
    assert!(!socket.exists(), "the admin socket must go with the process");
}

#[tokio::test]
async fn silent_connections_do_not_keep_probes_out() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let address = process.admin().await;
    let began = Instant::now();
    let silent: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            // It may have been closed already to make room: that is the point.
            let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nX-Slow: ");
            stream
        })
        .collect();
    assert_eq!(process.get("/livez").await.code, 200);
    let lines = process.log().matches("too many admin connections").count() as u64;
    assert!(lines <= 1 + began.elapsed().as_secs() / 10, "more than one in ten seconds: {lines}");
    drop(silent);
    process.stop().await;
}

#[tokio::test]
async fn a_request_of_endless_headers_is_refused() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut stream = TcpStream::connect(process.admin().await).unwrap();
    let long = format!("GET /livez HTTP/1.1\r\nX-Long: {}\r\n\r\n", "x".repeat(1 << 20));
    // The other side hangs up before it has read all of it.
    let _ = stream.write_all(long.as_bytes());
    let mut answer = String::new();
    let _ = std::io::Read::read_to_string(&mut stream, &mut answer);
    assert!(!answer.contains(" 200 "), "{answer}");
    assert_eq!(process.get("/livez").await.code, 200);
    process.stop().await;
}
