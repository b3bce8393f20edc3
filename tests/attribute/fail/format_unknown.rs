#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = "{usr_id}:{ip}")]
async fn several(user_id: u64, (tenant, _): (u8, u8)) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{user_id}")]
async fn none() -> Option<()> {
    None
}

struct Service;

impl Service {
    #[rate_limit(period = 30, threshold = 2, key = "{tenant}")]
    async fn method<const N: usize>(&self, r#type: u8) -> Option<()> {
        None
    }
}

fn main() {}
