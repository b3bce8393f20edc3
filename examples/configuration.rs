//! The settings of a limiter in the configuration of an application, read by figment and by config.
//!
//! ```sh
//! cargo run --example configuration
//! ```

use anyhow::{Result, ensure};
use config::{Config, File, FileFormat};
use figment::Figment;
use figment::providers::{Format, Toml};
use ratelimit_runtime::RateLimiterSettings;
use serde::Deserialize;

/// Stands for a file.
const FILE: &str = r#"
    port = 8080

    [limiter]
    key_prefix = "shop"
    deadline = "50ms"
    on_error = "local"
    instances = 4
"#;

/// The configuration of the application.
#[derive(Deserialize)]
struct Settings {
    port: u16,
    limiter: RateLimiterSettings,
}

fn main() -> Result<()> {
    let by_figment: Settings = Figment::new().merge(Toml::string(FILE)).extract()?;
    let file = File::from_str(FILE, FileFormat::Toml);
    let by_config: Settings = Config::builder().add_source(file).build()?.try_deserialize()?;
    ensure!(by_figment.limiter == by_config.limiter, "both read the same");

    let limiter = by_config.limiter.builder()?.build()?;
    println!("port {}, limits in {:?}", by_config.port, limiter.source());

    let mistaken = FILE.replace("deadline", "deadlin");
    if let Err(error) = Figment::new().merge(Toml::string(&mistaken)).extract::<Settings>() {
        println!("with a mistake: {error}");
    }
    Ok(())
}
