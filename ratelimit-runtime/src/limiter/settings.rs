//! The settings of a limiter in a configuration or in the environment.

use std::env;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::Builder;
#[cfg(feature = "rules")]
use super::rules::Rules;
use crate::limit::OnError;
use crate::printing::debug_by_name;
use crate::reply::BuildError;
#[cfg(feature = "redis")]
use crate::store::redis::{LoginSettings, PasswordFile, Provider};
use crate::text::closest::closest;
use crate::text::duration::parse_text;

/// What the names of all variables of the environment begin with.
const PREFIX: &str = "RATELIMIT_";

/// Defines the settings, each with its type and the function that reads its text.
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        pub struct $settings:ident {
            $(
                $(#[$of_field:meta])*
                $name:ident: $type:ty = $read:ident $(needs $feature:literal)?,
            )+
        }
    ) => {
        $(#[$attribute])*
        pub struct $settings {
            $($(#[$of_field])* pub $name: Option<$type>,)+
        }

        /// The names of all settings.
        const NAMES: &[&str] = &[$(stringify!($name)),+];

        impl $settings {
            /// Sets a setting by its name. Returns whether there is one.
            fn set(&mut self, name: &str, text: &str) -> Result<bool, String> {
                match name {
                    $(stringify!($name) => self.$name = Some($read(text)?),)+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Fails if a setting needs a feature that this build lacks.
            fn check_features(&self) -> Result<(), BuildError> {
                $($(if self.$name.is_some() && !cfg!(feature = $feature) {
                    let lacks = "this build of `ratelimit-runtime` lacks the feature";
                    let message = format!("{lacks} `{}`: enable it", $feature);
                    return Err(invalid(stringify!($name), &message));
                })?)+
                Ok(())
            }
        }
    };
}

settings! {
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
    /// In the environment, `RATELIMIT_` precedes each name, in capitals: `RATELIMIT_REDIS_URL`, `RATELIMIT_DEADLINE`.
    /// An empty variable is not set.
    ///
    /// Some settings of the [`Builder`] are no part of a configuration, such as `max_pending`. Show an error of a
    /// parser by its `Display`: the `Debug` of that of `toml` contains the whole text, with the password of a URL.
    #[derive(Clone, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
    #[non_exhaustive]
    pub struct RateLimiterSettings {
        /// [`Builder::redis`]; without it, the process counts.
        redis_url: String = parsed,
        /// The path of a [`PasswordFile`](crate::PasswordFile), which exists when the limiter is built.
        password_file: PathBuf = parsed,
        /// The path of a PEM file: [`Builder::root_certificates`].
        root_certificates: PathBuf = parsed needs "tls",
        /// The path of a PEM file: [`Builder::client_certificate`].
        client_certificate: PathBuf = parsed needs "tls",
        /// The path of a PEM file: the private key of the client certificate.
        client_key: PathBuf = parsed needs "tls",
        /// [`Builder::server_name`].
        server_name: String = parsed needs "tls",
        /// [`Builder::key_prefix`].
        key_prefix: String = parsed,
        /// [`Builder::key_secret`].
        key_secret: String = parsed,
        /// [`Builder::deadline`], as a text: `50ms`.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "deserialize_duration"))]
        deadline: Duration = duration,
        /// [`Builder::on_error`]: `local`, `allow` or `deny`.
        on_error: OnError = on_error,
        /// [`Builder::instances`].
        instances: u32 = parsed,
        /// [`Builder::max_keys`].
        max_keys: usize = parsed,
        /// [`Builder::rules`]: `redis`, or the path of a file.
        rules: String = parsed needs "rules",
    }
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
        for (variable, value) in env::vars_os().filter(|(_, value)| !value.is_empty()) {
            let Some(name) = variable.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            let setting = name.to_ascii_lowercase();
            let text = value.to_str().ok_or_else(|| "it is not UTF-8".to_owned());
            let is_known = text.and_then(|text| settings.set(&setting, text));
            if !is_known.map_err(|message| invalid(&setting, &message))? {
                unknown.push(format!("{PREFIX}{name}"));
            }
        }
        unknown.sort_unstable();
        Ok((settings, unknown))
    }

    /// Returns a builder with these settings.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a file of certificates cannot be read, or if a setting needs a feature that this build lacks.
    pub fn builder(&self) -> Result<Builder, BuildError> {
        self.check_features()?;
        let is_redis_set = self.redis_url.is_some() || self.password_file.is_some();
        if is_redis_set && !cfg!(feature = "redis") {
            return Err(BuildError::RedisDisabled);
        }
        let mut builder = Builder::default();
        #[cfg(feature = "redis")]
        self.set_login(&mut builder.login)?;
        builder.redis.clone_from(&self.redis_url);
        builder.key_prefix = self.key_prefix.clone().unwrap_or(builder.key_prefix);
        builder.key_secret = self.key_secret.clone().map(String::into_bytes);
        builder.max_keys = self.max_keys.unwrap_or(builder.max_keys);
        let settings = &mut builder.settings;
        settings.deadline = self.deadline.unwrap_or(settings.deadline);
        settings.on_error = self.on_error.unwrap_or(settings.on_error);
        settings.instances = self.instances.unwrap_or(settings.instances);
        #[cfg(feature = "rules")]
        if let Some(place) = self.rules.as_deref() {
            let rules = if place == "redis" { Rules::redis() } else { Rules::file(place) };
            builder = builder.rules(rules);
        }
        Ok(builder)
    }

    #[cfg(feature = "redis")]
    fn set_login(&self, login: &mut LoginSettings) -> Result<(), BuildError> {
        if let Some(path) = &self.password_file {
            read("password_file", path)?;
            login.provider = Some(Provider::new(PasswordFile::new(path)));
        }
        let root = self.root_certificates.as_ref();
        login.root_certificates = root.map(|path| read("root_certificates", path)).transpose()?;
        login.client_certificate = match (&self.client_certificate, &self.client_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some((read("client_certificate", certificate)?, read("client_key", key)?))
            }
            (Some(_), None) => {
                return Err(invalid("client_certificate", "set `client_key` as well"));
            }
            (None, Some(_)) => {
                return Err(invalid("client_key", "set `client_certificate` as well"));
            }
        };
        login.server_name.clone_from(&self.server_name);
        Ok(())
    }
}

/// Reports variables of the environment that are no setting.
pub(super) fn report_unknown(unknown: &[String]) {
    for variable in unknown {
        let setting = variable.trim_start_matches(PREFIX).to_ascii_lowercase();
        let meant = closest(&setting, NAMES.iter().copied())
            .map(|name| format!("{PREFIX}{}", name.to_uppercase()));
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

/// Reads the file of a setting. The error does not name the path: a secret may stand in its place.
fn read(name: &str, path: &Path) -> Result<Vec<u8>, BuildError> {
    let failed = |error| invalid(name, &format!("{error}: write the path of a file"));
    std::fs::read(path).map_err(failed)
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_text(text).map(Duration::from_micros)
}

/// Reads a text, which any text is, or a number.
fn parsed<T: FromStr>(text: &str) -> Result<T, String> {
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
