//! gRPC: streams of a server, with their trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use ratelimit_runtime::RateLimiter;
use ratelimit_runtime::web::RateLimitLayer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use super::{TWO, in_flight, wait_for_in_flight};
use crate::MINUTE;

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Messages = Pin<Box<dyn Stream<Item = Result<String, Status>> + Send>>;
type Sender = UnboundedSender<Result<String, Status>>;

/// The code that tonic generates for a service with one method, by hand. The test sends the messages of each stream.
#[derive(Clone)]
struct WatcherServer(UnboundedSender<Sender>);

impl NamedService for WatcherServer {
    const NAME: &'static str = "test.Watcher";
}

impl<B> Service<http::Request<B>> for WatcherServer
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = Watch(self.0.clone());
        let codec = ProstCodec::<String, String>::default();
        Box::pin(async move { Ok(Grpc::new(codec).server_streaming(method, request).await) })
    }
}

struct Watch(UnboundedSender<Sender>);

impl ServerStreamingService<String> for Watch {
    type Response = String;
    type ResponseStream = Messages;
    type Future = Later<Result<Response<Messages>, Status>>;

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let (sender, receiver) = unbounded_channel();
        self.0.send(sender).expect("the test receives it");
        let next =
            async |mut receiver: UnboundedReceiver<_>| Some((receiver.recv().await?, receiver));
        let messages: Messages = stream::unfold(receiver, next).boxed();
        Box::pin(async move { Ok(Response::new(messages)) })
    }
}

async fn watch(
    client: &mut tonic::client::Grpc<Channel>,
) -> Result<tonic::Streaming<String>, Status> {
    client.ready().await.expect("a connection");
    let path = PathAndQuery::from_static("/test.Watcher/Watch");
    let codec = ProstCodec::<String, String>::default();
    let response = client.server_streaming(Request::new(String::new()), path, codec).await?;
    Ok(response.into_inner())
}

#[tokio::test]
async fn a_stream_holds_its_slot_until_its_trailers_are_sent() {
    let limiter = RateLimiter::embedded();
    let (sender, mut streams) = unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let layer = RateLimitLayer::grpc().limit(TWO, |_| ()).limiter(limiter.clone());
    let server = Server::builder().layer(layer).add_service(WatcherServer(sender));
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).expect("a URI");
    let mut client = tonic::client::Grpc::new(channel.connect().await.expect("a connection"));

    let mut first = watch(&mut client).await.expect("admitted");
    let first_sender: Sender = streams.recv().await.expect("a stream");
    let mut second = watch(&mut client).await.expect("admitted");
    let second_sender = streams.recv().await.expect("a stream");
    first_sender.send(Ok("one".to_owned())).expect("not dropped");
    assert_eq!(first.message().await.expect("a message").as_deref(), Some("one"));
    assert_eq!(in_flight(&limiter, &TWO).await, 2);

    let busy = watch(&mut client).await.expect_err("two streams are open");
    assert_eq!(busy.code(), Code::ResourceExhausted);
    let quota = busy.get_details_quota_failure().expect("which limit");
    assert_eq!((&*quota.violations[0].subject, quota.violations[0].quota_value), ("two", 2));
    let retry = busy.get_details_retry_info().expect("when to come back");
    assert_eq!(retry.retry_delay, Some(std::time::Duration::from_secs(1)));

    // The status is in the trailers, in the middle of the stream and at its end.
    let failed = Status::data_loss("the source fails");
    first_sender.send(Err(failed)).expect("not dropped");
    assert_eq!(first.message().await.expect_err("it fails").code(), Code::DataLoss);
    wait_for_in_flight(&limiter, &TWO, 1).await;
    drop(second_sender);
    assert_eq!(second.message().await.expect("the status is OK"), None);
    assert!(second.trailers().await.expect("trailers").is_some());
    wait_for_in_flight(&limiter, &TWO, 0).await;

    // A client cancels its call.
    let cancelled = watch(&mut client).await.expect("admitted");
    let sender = streams.recv().await.expect("a stream");
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    drop(cancelled);
    tokio::time::timeout(MINUTE, sender.closed()).await.expect("the server drops the stream");
    wait_for_in_flight(&limiter, &TWO, 0).await;
}
