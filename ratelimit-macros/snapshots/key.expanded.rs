async fn format(tenant: &str, user: User) -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::Format(|
                __rate_limit_out: &mut ::ratelimit_runtime::KeyWriter<'_>|
            {
                ::ratelimit_runtime::__private::FormatArgument(
                        &tenant,
                        ::ratelimit_runtime::__private::Formatted(
                            ::core::format_args!("{}", tenant),
                        ),
                    )
                    .write_argument(__rate_limit_out);
                __rate_limit_out.separator();
                ::ratelimit_runtime::__private::Formatted(
                        ::core::format_args!("{:08x}", user.id),
                    )
                    .write_argument(__rate_limit_out);
            }),
            1_u64,
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "format"),
                                                10,
                                                ::ratelimit_runtime::__private::micros(1000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        None
    }
}
async fn method(&self) -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::key(&self.id),
            1_u64,
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "method"),
                                                10,
                                                ::ratelimit_runtime::__private::micros(1000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        None
    }
}
async fn pattern(Path(id): Path<u64>) -> Option<u64> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::key(&id),
            1_u64,
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::align(
                                                ::ratelimit_runtime::Limit::fixed(
                                                    ::core::concat!(::core::module_path!(), "::", "pattern"),
                                                    Self::MAX,
                                                    ::ratelimit_runtime::__private::micros(86400000000u64),
                                                ),
                                                ::ratelimit_runtime::Align::offset_minutes(480i32),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        Some(id)
    }
}
async fn monthly(id: u64) -> Option<u64> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::key(&id),
            1_u64,
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::align(
                                                ::ratelimit_runtime::Limit::calendar(
                                                    ::core::concat!(::core::module_path!(), "::", "monthly"),
                                                    10,
                                                    ::ratelimit_runtime::Calendar::Month,
                                                ),
                                                ::ratelimit_runtime::Align::day(
                                                    ::ratelimit_runtime::Align::zone("Asia/Tokyo"),
                                                    15u8,
                                                ),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        Some(id)
    }
}
