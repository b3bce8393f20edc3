//! An order that a client sends twice is charged once.
//!
//! ```sh
//! cargo run --example repeated_order
//! ```
//!
//! A shop may place two orders an hour. Its client sends each order again until it has a reply, always with the same
//! id. The program prints which orders are accepted. A repeated order costs nothing. The third order is too many.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 2, key = shop, once = order_id, within = "1d")]
async fn place(shop: &str, order_id: u32) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let orders = async {
        for order_id in [7, 7, 8, 7, 9, 8] {
            match place("acme", order_id).await {
                Ok(()) => println!("order {order_id}: accepted"),
                Err(rejection) => println!("order {order_id}: {rejection}"),
            }
        }
    };
    RateLimiter::embedded().scope(orders).await;
}
