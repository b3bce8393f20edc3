//! The settings of layers and middlewares, written once: methods of `RateLimitLayer` and `OutboundLayer` (tower), and
//! of `RateLimits` (actix). Each of these types has a `LayerConfig` in its field `config`.

/// Defines the settings that every layer has: its limits, for requests of type `$request`. A request for which `limits`
/// fails ends with a `$refusal`. `configure` changes any setting.
macro_rules! limit_settings {
    ($request:ty, $refusal:ty) => {
        fn configure(mut self, change: impl FnOnce(&mut LayerConfig<$request, $refusal>)) -> Self {
            change(std::sync::Arc::make_mut(&mut self.config));
            self
        }

        /// Limits requests by `limit`. `key` returns the key of a request; with `|_| ()`, all requests share one count.
        /// Each request takes one unit. Several limits are decided together: see
        /// [`RateLimiter::check_all`](crate::RateLimiter::check_all).
        ///
        /// # Panics
        ///
        /// If limits that are added here differ in scope, `on_error`, shadow or wait: add such limits to separate
        /// layers. If the limit is one of calls [in flight](crate::Limit::in_flight) and the layer is one of a client,
        /// which holds no slots: hold the permit of [`acquire`](crate::RateLimiter::acquire). If a limit has a
        /// [lease](crate::Limit::lease), and the layer has `count_if` or a limit of calls in flight.
        #[must_use]
        #[track_caller]
        pub fn limit<K: crate::Key>(
            self,
            limit: crate::Limit,
            key: impl Fn(&$request) -> K + Send + Sync + 'static,
        ) -> Self {
            self.limit_with_cost(limit, key, |_| 1)
        }

        /// Limits requests like [`limit`](Self::limit). `cost` returns how many units a request takes, before it is
        /// handled: for instance its `Content-Length` in kilobytes. A request of cost 0 takes none, and is rejected
        /// while the count is above its limit. A request that costs more than the limit admits at once is rejected.
        ///
        /// # Panics
        ///
        /// As for [`limit`](Self::limit).
        #[must_use]
        #[track_caller]
        pub fn limit_with_cost<K: crate::Key>(
            self,
            limit: crate::Limit,
            key: impl Fn(&$request) -> K + Send + Sync + 'static,
            cost: impl Fn(&$request) -> u64 + Send + Sync + 'static,
        ) -> Self {
            let layer = self.configure(|config| config.add(limit, key, cost));
            crate::registry::add_of_layer(&limit, std::panic::Location::caller());
            layer
        }

        /// Chooses the limits of each request: `choose` adds them. A request to which it adds none is not limited. If
        /// `choose` returns an error, the request goes no further and is not charged, and its sender receives the
        /// error. The limits of a request are decided together.
        ///
        /// Limits that differ in scope, `on_error`, shadow or wait cannot be decided together, nor can two different
        /// limits that share a count, nor a limit with a [lease](crate::Limit::lease) and one of calls [in
        /// flight](crate::Limit::in_flight): such a request is rejected with
        /// [`Rejection::Mistake`](crate::Rejection::Mistake), and so is one with a limit of calls in flight in a layer
        /// of a client.
        #[must_use]
        pub fn limits(
            self,
            choose: impl Fn(&$request, &mut crate::web::RequestLimits) -> Result<(), $refusal>
            + Send
            + Sync
            + 'static,
        ) -> Self {
            self.configure(|config| config.add_chosen(choose))
        }

        /// Admits the requests for which `is_exempt` returns true, for instance health checks, without a check.
        #[must_use]
        pub fn exempt(self, is_exempt: impl Fn(&$request) -> bool + Send + Sync + 'static) -> Self {
            self.configure(|config| config.is_exempt = Some(std::sync::Arc::new(is_exempt)))
        }

        /// Uses `limiter` for these limits, instead of the [current](crate::current) one. Annotated functions are not
        /// affected.
        #[must_use]
        pub fn limiter(self, limiter: crate::RateLimiter) -> Self {
            self.configure(|config| config.limiter = Some(limiter))
        }
    };
}

/// Defines the settings of layers of servers. `$layer` is the type of the layer, and `$use` imports what the examples
/// use.
macro_rules! server_settings {
    ($layer:literal, $use:literal) => {
        /// Counts requests by their response, such as failed logins: a request counts if `counts` returns true for the
        /// status and the headers of its response.
        ///
        /// A request takes its units from all limits of this layer before it is handled, so that many requests at the
        /// same time cannot pass the limit. If `counts` returns false, the units are given back, as if they had not
        /// been taken. With Redis, the background thread does that some milliseconds later. The headers of the response
        /// report the count before that.
        ///
        /// A request without a response keeps its units: its client has left, its handler has panicked, or the service
        /// has failed. With actix-web, an error of an inner middleware counts as the response that it becomes.
        ///
        /// ```
        /// use std::time::Duration;
        /// use ratelimit_runtime::Limit;
        /// use ratelimit_runtime::web::Client;
        #[doc = $use]
        ///
        /// const FAILURES: Limit = Limit::sliding("failed logins", 5, Duration::from_secs(900));
        ///
        #[doc = concat!(" let layer: ", $layer, " = ", $layer, "::new()")]
        ///     .limit(FAILURES, Client::of)
        ///     .count_if(|response| response.status == 401);
        /// ```
        ///
        /// Slots of calls [in flight](crate::Limit::in_flight) are held until the response ends, whether the request
        /// counts or not. Add limits that count each request to another layer.
        ///
        /// Over gRPC, a method that fails has the header `grpc-status`. A method that succeeds, or that fails in the
        /// middle of its stream, has it after the body, where `counts` does not see it.
        ///
        /// # Panics
        ///
        /// If a limit has a [lease](crate::Limit::lease). A request to which [`limits`](Self::limits) adds such a limit
        /// is rejected with [`Rejection::Mistake`](crate::Rejection::Mistake).
        #[must_use]
        pub fn count_if(
            self,
            counts: impl Fn(&http::response::Parts) -> bool + Send + Sync + 'static,
        ) -> Self {
            self.configure(|config| {
                config.settle_if(true);
                config.server.count_if = Some(std::sync::Arc::new(counts));
            })
        }

        /// Sets how clients are identified: by [`Client::of`](crate::web::Client::of) in the key functions of this
        /// layer, and by `Client` in the handlers behind it. It is put into the extensions of each request.
        #[must_use]
        pub fn clients(self, clients: crate::web::Clients) -> Self {
            self.configure(|config| config.server.clients = Some(clients))
        }

        /// Puts the [`Decision`](crate::Decision) about each admitted request into its extensions, for the handler. It
        /// is the decision of this layer, or of the last layer with this setting that the request passes. A request
        /// that is exempt, or that has no limits here, gets none.
        #[must_use]
        pub fn expose_decision(self) -> Self {
            self.configure(|config| config.expose = Some(ServerRequest::insert))
        }

        /// For tests: panics if a handler has responded to a request about which no limit has decided. The panic names
        /// the method and the path. Put a layer with this setting around the application, and send a request to each
        /// route. The limit can be one of this layer, of a layer inside of it, or of an annotated function that the
        /// handler awaits.
        ///
        /// Not a decision: one of a [shadow](crate::Limit::shadow), which admits every request; one in a task that the
        /// handler has spawned; a [`peek`](crate::RateLimiter::peek); a call without a limit, because its threshold is
        /// `None` or a rule exempts it. For routes that need no limit, such as health checks, use
        /// [`exempt`](Self::exempt) in this layer: what layers inside of it exempt is not exempt here.
        ///
        /// ```
        #[doc = $use]
        ///
        #[doc = concat!(" let layer: ", $layer, " = ", $layer, "::new().require_decision();")]
        /// # let _ = layer;
        /// ```
        ///
        /// The guide about tests has a whole test.
        ///
        /// # Panics
        ///
        /// While a request is handled. Do not use it in production.
        #[must_use]
        pub fn require_decision(self) -> Self {
            self.configure(|config| config.server.requires_decision = true)
        }

        /// Also sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds), for clients
        /// that do not know `RateLimit`. They report the limit that rejected the request or, if none did, the limit
        /// with the fewest remaining units.
        #[must_use]
        pub fn legacy_headers(self) -> Self {
            self.configure(|config| config.server.log.has_legacy_headers = true)
        }
    };
}

/// Defines the setting of the body of rejected requests over HTTP.
macro_rules! body_setting {
    () => {
        /// Sets the body of rejected requests: a function that returns the content type and the text, or a
        /// [`TextResponse`](crate::web::TextResponse) with another status. It sees the method, the path and the headers
        /// of the request, such as a request identifier or a language.
        #[must_use]
        pub fn rejection_body<T: Into<crate::web::TextResponse>>(
            self,
            body: impl Fn(&crate::web::RejectedRequest<'_>) -> T + Send + Sync + 'static,
        ) -> Self {
            let body: crate::web::rejected::BodyFn =
                std::sync::Arc::new(move |request| body(request).into());
            self.configure(|config| config.server.body = Some(body))
        }
    };
}

pub(super) use {body_setting, limit_settings, server_settings};
