//! A quota for each month of an invoice: each customer has a time zone and a billing day of its own.
//!
//! ```sh
//! cargo run --example invoice
//! ```
//!
//! The program runs on a clock that it moves. Two customers use their quotas on 14 July. The month of the first ends
//! when 15 July begins in Berlin. The month of the second ends when 31 July begins in New York.

use std::time::Duration;

use ratelimit_runtime::{
    Align, Clock, LimitError, RateLimiter, Rejection, VirtualClock, rate_limit,
};

struct Customer {
    name: &'static str,
    /// Read once, when the customer is loaded: a zone that does not exist is an error there.
    zone: Align,
    billing_day: u8,
}

impl Customer {
    fn new(name: &'static str, zone: &str, billing_day: u8) -> Result<Self, LimitError> {
        Ok(Self { name, zone: Align::try_zone(zone)?, billing_day })
    }
}

#[rate_limit(
    period = "month", threshold = 3, key = customer.name,
    align = customer.zone, align_day = customer.billing_day
)]
async fn convert(customer: &Customer) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 14 July 2026, 20:00 UTC: 22:00 in Berlin, 16:00 in New York.
    let clock = VirtualClock::at(Duration::from_secs(1_784_059_200));
    let limiter = RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build()?;
    let customers = [
        Customer::new("acme", "Europe/Berlin", 15)?,
        Customer::new("globex", "America/New_York", 31)?,
    ];
    for later in ["", "two hours later, "] {
        for customer in &customers {
            let mut converted = 0;
            let rejection = loop {
                match limiter.scope(convert(customer)).await {
                    Ok(()) => converted += 1,
                    Err(rejection) => break rejection,
                }
            };
            let hours = rejection.retry_after().unwrap_or_default().as_secs() / 3_600;
            println!("{later}{}: {converted} converted, more in {hours} hours", customer.name);
        }
        clock.advance(Duration::from_secs(2 * 3_600));
    }
    Ok(())
}
