use aws_credential_types::Credentials as Keys;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;

use super::*;

/// Notes where a request goes, and sends nothing.
#[derive(Clone, Debug, Default)]
struct Where(Arc<Mutex<Option<String>>>);

impl HttpConnector for Where {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        *self.0.lock().unwrap() = Some(request.uri().to_owned());
        HttpConnectorFuture::ready(Err(ConnectorError::io("not sent".into())))
    }
}

impl HttpClient for Where {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

#[tokio::test]
async fn the_endpoint_is_the_one_that_is_named_or_the_one_that_aws_has_there() {
    let find = async |settings: &str, region: &str| {
        let settings: Settings = serde_json::from_str(settings).unwrap();
        let (found, keys) = (Where::default(), Keys::new("id", "secret", None, None, "test"));
        let sdk = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::disabled())
            .http_client(found.clone())
            .build();
        let config = service(&sdk, &settings).credentials_provider(keys).build();
        let sent = Kms::from_conf(config).describe_key().key_id("k").send().await;
        let error = codes::explain("kms:DescribeKey", "k", &sent.unwrap_err());
        found.0.lock().unwrap().take().ok_or_else(|| error.kind())
    };
    for (settings, region, expected) in [
        ("{}", "eu-west-1", "https://kms.eu-west-1.amazonaws.com/"),
        ("{}", "cn-north-1", "https://kms.cn-north-1.amazonaws.com.cn/"),
        (r#"{"fips": true}"#, "us-gov-west-1", "https://kms-fips.us-gov-west-1.amazonaws.com/"),
        (r#"{"dualstack": true}"#, "us-east-1", "https://kms.us-east-1.api.aws/"),
        (
            r#"{"fips": true, "dualstack": true}"#,
            "us-east-1",
            "https://kms-fips.us-east-1.api.aws/",
        ),
        (r#"{"endpoint": "https://vpce-1.kms:8443"}"#, "us-east-1", "https://vpce-1.kms:8443/"),
    ] {
        let found = find(settings, region).await;
        assert_eq!(found.as_deref(), Ok(expected), "{settings} in {region}");
    }
    // A URL is no name that could be turned into another one.
    let both = r#"{"endpoint": "https://vpce-1.kms", "fips": true}"#;
    assert_eq!(find(both, "us-east-1").await, Err(Kind::Config));
}
