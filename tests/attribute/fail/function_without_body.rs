use ratelimit_runtime::rate_limit;

trait Service {
    #[rate_limit(period = 30, threshold = 2)]
    async fn call(&self) -> Option<()>;
}

fn main() {}
