//! The gRPC example, called by a tonic client.

use http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use crate::{ExampleServer, example};

async fn call(
    client: &mut tonic::client::Grpc<Channel>,
    method: &'static str,
    name: &str,
) -> Result<Response<String>, Status> {
    client.ready().await.expect("a connection");
    let request = tonic::Request::new(name.to_owned());
    let codec = ProstCodec::<String, String>::default();
    client.unary(request, PathAndQuery::from_static(method), codec).await
}

#[tokio::test]
async fn tonic_responds_as_its_grpcurl_lines_say() {
    let server = ExampleServer::start(example("tonic"));
    let channel = Channel::from_shared(format!("http://{}", server.address)).expect("a URI");
    let mut client = tonic::client::Grpc::new(channel.connect().await.expect("a connection"));
    let method = "/hello.Greeter/Greet";
    for _ in 0..2 {
        let greeting = call(&mut client, method, "ann").await.expect("admitted");
        assert_eq!(greeting.get_ref(), "hi ann");
        assert!(greeting.metadata().get("ratelimit").is_some());
    }
    let rejected = call(&mut client, method, "ann").await.expect_err("rejected");
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    let wait = rejected.get_details_retry_info().expect("the wait until a retry").retry_delay;
    assert!(wait.is_some_and(|wait| (1..=30).contains(&wait.as_secs())), "{wait:?}");
    let quota = rejected.get_details_quota_failure().expect("the name of the limit");
    assert_eq!(quota.violations[0].subject, "tonic::greet");

    assert!(call(&mut client, method, "bob").await.is_ok());
    let unknown = call(&mut client, "/hello.Greeter/Leave", "bob").await.expect_err("unknown");
    assert_eq!(unknown.code(), Code::Unimplemented);
    // That was the fifth call of this client, so its bucket of five is empty.
    let rejected = call(&mut client, method, "bob").await.expect_err("rejected");
    let quota = rejected.get_details_quota_failure().expect("the name of the limit");
    assert_eq!(quota.violations[0].subject, "all");
    assert_eq!(server.rejections(), ["tonic::greet", "all"]);
}
