//! How messages are turned into bytes: as tonic does it, with buffers of their size.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// Room for a usual message; larger ones make their buffers grow. Tonic takes 8 KiB for each
/// request and each answer, which is most of the memory of a call under way.
const BUFFER: usize = 1024;

/// Tonic's own: a single message never gets there.
const YIELD: usize = 32 * 1024;

/// The codec of the generated client and server.
#[derive(Clone, Debug)]
pub struct KmsCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for KmsCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for KmsCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD))
    }
}
