//! The headers that keep AWS from being a confused deputy: on whose behalf the key is used.

use aws_sdk_kms::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_kms::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_kms::error::BoxError;
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use http::HeaderValue;
use sidekey_core::{Error, Kind};

use crate::config::Settings;

/// Says in every request for which resource the key is used; key policies may ask for it.
#[derive(Clone, Debug)]
pub(crate) struct SourceArn {
    arn: HeaderValue,
    account: HeaderValue,
}

impl SourceArn {
    /// As `sourceArn` says, if it is set.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Self>, Error> {
        let (Some(arn), Some(account)) = (&settings.source_arn, settings.source_account()) else {
            return Ok(None);
        };
        let value = |text: &str| {
            HeaderValue::from_str(text)
                .map_err(|_| Error::new(Kind::Config, "settings.sourceArn cannot be sent"))
        };
        Ok(Some(Self { arn: value(arn)?, account: value(account)? }))
    }
}

#[dyn_dispatch_hint]
impl Intercept for SourceArn {
    fn name(&self) -> &'static str {
        "SourceArn"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        headers.insert("x-amz-source-arn", self.arn.clone());
        headers.insert("x-amz-source-account", self.account.clone());
        Ok(())
    }
}
