//! The settings of a limiter in a configuration or in the environment.

use std::env;
#[cfg(feature = "redis")]
use std::path::Path;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::Builder;
#[cfg(feature = "rules")]
use super::Rules;
use crate::limit::OnError;
use crate::printing::debug_by_name;
use crate::reply::BuildError;
#[cfg(feature = "redis")]
use crate::store::redis::PasswordFile;
use crate::text::closest::closest;
use crate::text::duration::parse_text;

/// What the names of all variables of the environment begin with.
const PREFIX: &str = "RATELIMIT_";

/// The settings of a limiter in a configuration or in the environment; each is a setting of the [`Builder`].
///
/// With feature `serde`, any format has them:
///
/// ```no_run
/// # #[cfg(feature = "serde")] {
/// use ratelimit_runtime::{RateLimiter, RateLimiterSettings};
///
/// let settings: RateLimiterSettings = toml::from_str(
///     r#"
///         redis_url = "redis://limiter@10.0.0.5"
///         password_file = "/run/secrets/redis-password"
///         key_prefix = "shop"
///         deadline = "50ms"
///         on_error = "local"
///         instances = 4
///     "#,
/// )?;
/// let limiter = settings.builder()?.build()?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In the environment, `RATELIMIT_` precedes each name, in capitals: `RATELIMIT_REDIS_URL`, `RATELIMIT_DEADLINE`. An
/// empty variable is not set.
///
/// Some settings of the [`Builder`] are no part of a configuration, such as `max_pending`. Show an error of a parser by
/// its `Display`: the `Debug` of that of `toml` contains the whole text, with the password of a URL.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct RateLimiterSettings {
    /// [`Builder::redis`]; without it, the process counts.
    pub redis_url: Option<String>,
    /// The path of a [`PasswordFile`](crate::PasswordFile), which exists when the limiter is built.
    pub password_file: Option<PathBuf>,
    /// The path of a PEM file: [`Builder::root_certificates`].
    pub root_certificates: Option<PathBuf>,
    /// The path of a PEM file: [`Builder::client_certificate`].
    pub client_certificate: Option<PathBuf>,
    /// The path of a PEM file: the private key of the client certificate.
    pub client_key: Option<PathBuf>,
    /// [`Builder::server_name`].
    pub server_name: Option<String>,
    /// [`Builder::key_prefix`].
    pub key_prefix: Option<String>,
    /// [`Builder::key_secret`].
    pub key_secret: Option<String>,
    /// [`Builder::deadline`], as a text: `50ms`.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "deserialize_duration"))]
    pub deadline: Option<Duration>,
    /// [`Builder::on_error`]: `local`, `allow` or `deny`.
    pub on_error: Option<OnError>,
    /// [`Builder::instances`].
    pub instances: Option<u32>,
    /// [`Builder::max_keys`].
    pub max_keys: Option<usize>,
    /// [`Builder::rules`]: `redis`, or the path of a file.
    pub rules: Option<String>,
}

// Two of them are secrets.
debug_by_name!("RateLimiterSettings" [] RateLimiterSettings);

impl RateLimiterSettings {
    /// Reads the settings from the environment. A `WARN` event names the variables that begin with `RATELIMIT_` and are
    /// no setting.
    ///
    /// # Errors
    ///
    /// [`BuildError::InvalidSetting`] if a variable does not have the form of its setting.
    pub fn from_environment() -> Result<Self, BuildError> {
        let (settings, unknown) = Self::read_environment()?;
        report_unknown(&unknown);
        Ok(settings)
    }

    /// Reads the settings from the environment. Also returns the names of other variables.
    pub(super) fn read_environment() -> Result<(Self, Vec<String>), BuildError> {
        let (mut settings, mut unknown) = (Self::default(), Vec::new());
        for (name, value) in env::vars_os() {
            let Some((variable, setting)) =
                name.to_str().and_then(|name| Some((name, name.strip_prefix(PREFIX)?)))
            else {
                continue;
            };
            if value.is_empty() {
                continue;
            }
            let setting = setting.to_ascii_lowercase();
            let text = value.into_string().map_err(|_| "it is not UTF-8".to_owned());
            let is_known = text.and_then(|text| settings.set(&setting, text));
            if !is_known.map_err(|message| invalid(&setting, &message))? {
                unknown.push(variable.to_owned());
            }
        }
        unknown.sort_unstable();
        Ok((settings, unknown))
    }

    /// Sets a setting by its name. Returns whether there is one.
    fn set(&mut self, name: &str, text: String) -> Result<bool, String> {
        match name {
            "redis_url" => self.redis_url = Some(text),
            "password_file" => self.password_file = Some(text.into()),
            "root_certificates" => self.root_certificates = Some(text.into()),
            "client_certificate" => self.client_certificate = Some(text.into()),
            "client_key" => self.client_key = Some(text.into()),
            "server_name" => self.server_name = Some(text),
            "key_prefix" => self.key_prefix = Some(text),
            "key_secret" => self.key_secret = Some(text),
            "deadline" => self.deadline = Some(duration(&text)?),
            "on_error" => self.on_error = Some(on_error(&text)?),
            "instances" => self.instances = Some(number(&text)?),
            "max_keys" => self.max_keys = Some(number(&text)?),
            "rules" => self.rules = Some(text),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns a builder with these settings.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a file of certificates cannot be read, or if a setting needs a feature that this build lacks.
    pub fn builder(&self) -> Result<Builder, BuildError> {
        let mut builder = self.encrypt(Builder::default())?;
        builder.redis.clone_from(&self.redis_url);
        match &self.password_file {
            None => {}
            #[cfg(feature = "redis")]
            Some(path) => {
                read("password_file", path)?;
                builder = builder.credentials(PasswordFile::new(path));
            }
            #[cfg(not(feature = "redis"))]
            Some(_) => return Err(BuildError::RedisDisabled),
        }
        if let Some(prefix) = &self.key_prefix {
            builder = builder.key_prefix(prefix);
        }
        if let Some(secret) = &self.key_secret {
            builder = builder.key_secret(secret.as_bytes());
        }
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        if let Some(on_error) = self.on_error {
            builder = builder.on_error(on_error);
        }
        if let Some(instances) = self.instances {
            builder = builder.instances(instances);
        }
        if let Some(keys) = self.max_keys {
            builder = builder.max_keys(keys);
        }
        match self.rules.as_deref() {
            None => Ok(builder),
            #[cfg(feature = "rules")]
            Some("redis") => Ok(builder.rules(Rules::redis())),
            #[cfg(feature = "rules")]
            Some(path) => Ok(builder.rules(Rules::file(path))),
            #[cfg(not(feature = "rules"))]
            Some(_) => Err(lacks("rules", "rules")),
        }
    }

    #[cfg(feature = "tls")]
    fn encrypt(&self, mut builder: Builder) -> Result<Builder, BuildError> {
        if let Some(path) = &self.root_certificates {
            builder = builder.root_certificates(read("root_certificates", path)?);
        }
        match (&self.client_certificate, &self.client_key) {
            (None, None) => {}
            (Some(certificate), Some(key)) => {
                let certificate = read("client_certificate", certificate)?;
                builder = builder.client_certificate(certificate, read("client_key", key)?);
            }
            (Some(_), None) => {
                return Err(invalid("client_certificate", "set `client_key` as well"));
            }
            (None, Some(_)) => {
                return Err(invalid("client_key", "set `client_certificate` as well"));
            }
        }
        match &self.server_name {
            Some(name) => Ok(builder.server_name(name)),
            None => Ok(builder),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn encrypt(&self, builder: Builder) -> Result<Builder, BuildError> {
        let paths = [
            ("root_certificates", self.root_certificates.is_some()),
            ("client_certificate", self.client_certificate.is_some()),
            ("client_key", self.client_key.is_some()),
            ("server_name", self.server_name.is_some()),
        ];
        match paths.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => Err(lacks(name, "tls")),
            None => Ok(builder),
        }
    }
}

/// The names of all settings.
const NAMES: [&str; 13] = [
    "redis_url",
    "password_file",
    "root_certificates",
    "client_certificate",
    "client_key",
    "server_name",
    "key_prefix",
    "key_secret",
    "deadline",
    "on_error",
    "instances",
    "max_keys",
    "rules",
];

/// Reports variables of the environment that are no setting.
pub(super) fn report_unknown(unknown: &[String]) {
    for variable in unknown {
        let setting = variable.trim_start_matches(PREFIX).to_ascii_lowercase();
        let meant = closest(&setting, NAMES).map(|name| format!("{PREFIX}{}", name.to_uppercase()));
        let meant = meant.as_deref();
        tracing::warn!(
            variable,
            meant,
            "a variable of the environment that begins with RATELIMIT_ is no setting of a rate limiter: see \
             `RateLimiterSettings`"
        );
    }
}

fn invalid(name: &str, message: &str) -> BuildError {
    BuildError::InvalidSetting { name: name.into(), message: message.into() }
}

#[cfg(not(all(feature = "tls", feature = "rules")))]
fn lacks(name: &str, feature: &str) -> BuildError {
    invalid(
        name,
        &format!("this build of `ratelimit-runtime` lacks the feature `{feature}`: enable it"),
    )
}

/// Reads the file of a setting. The error does not name the path: a secret may stand in its place.
#[cfg(feature = "redis")]
fn read(name: &str, path: &Path) -> Result<Vec<u8>, BuildError> {
    let failed = |error| invalid(name, &format!("{error}: write the path of a file"));
    std::fs::read(path).map_err(failed)
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_text(text).map(Duration::from_micros)
}

fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number in its range"))
}

fn on_error(text: &str) -> Result<OnError, String> {
    match text {
        "local" => Ok(OnError::Local),
        "allow" => Ok(OnError::Allow),
        "deny" => Ok(OnError::Deny),
        _ => Err(format!("`{text}` is none of `local`, `allow`, `deny`")),
    }
}

#[cfg(feature = "serde")]
fn deserialize_duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = <Option<String> as serde::Deserialize>::deserialize(deserializer)?;
    text.map(|text| duration(&text)).transpose().map_err(serde::de::Error::custom)
}
