async fn patient() -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match ((), 1_u64) {
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
                                            &::ratelimit_runtime::Limit::wait(
                                                ::ratelimit_runtime::Limit::scope(
                                                    ::ratelimit_runtime::Limit::sliding(
                                                        ::core::concat!(::core::module_path!(), "::", "patient"),
                                                        MAX,
                                                        PERIOD,
                                                    ),
                                                    ::ratelimit_runtime::Scope::Process,
                                                ),
                                                ::ratelimit_runtime::__private::micros(5000000u64),
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
async fn shadow() -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                crate::limits::__private::check(
                    &crate::limits::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: crate::limits::__private::Site =
                                        crate::limits::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        crate::limits::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &crate::limits::Limit::shadow(
                                                crate::limits::Limit::on_error(
                                                    crate::limits::Limit::sliding(
                                                        ::core::concat!(::core::module_path!(), "::", "shadow"),
                                                        10,
                                                        crate::limits::__private::micros(1000000u64),
                                                    ),
                                                    crate::limits::OnError::Deny,
                                                ),
                                                true,
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
            return crate::limits::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        None
    }
}
async fn hidden() -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match ((), 1_u64) {
            (__rate_limit_key, __rate_limit_cost) => {
                const {
                    ::ratelimit_runtime::__private::decided_together(
                        &[
                            &::ratelimit_runtime::Limit::hidden(
                                ::ratelimit_runtime::__private::limit(LOGIN),
                                false,
                            ),
                            &::ratelimit_runtime::Limit::hidden(
                                ::ratelimit_runtime::Limit::sliding(
                                    "limit",
                                    10,
                                    ::ratelimit_runtime::__private::micros(1000000u64),
                                ),
                                true,
                            ),
                        ],
                    )
                };
                let _ = (&__rate_limit_key, &__rate_limit_cost);
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
                                        ::ratelimit_runtime::__private::SiteName::Constant,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::hidden(
                                                ::ratelimit_runtime::__private::without_permit(LOGIN),
                                                false,
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost,
                            ),
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
                                            &::ratelimit_runtime::Limit::hidden(
                                                ::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(
                                                        ::core::concat!(::core::module_path!(), "::", "hidden"),
                                                        "#2"
                                                    ),
                                                    10,
                                                    ::ratelimit_runtime::__private::micros(1000000u64),
                                                ),
                                                true,
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost,
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
async fn leased() -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match ((), 1_u64) {
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
                                        ::ratelimit_runtime::__private::SiteName::Chosen,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::notify_at(
                                                ::ratelimit_runtime::Limit::lease(
                                                    ::ratelimit_runtime::Limit::sliding(
                                                        "leased",
                                                        100,
                                                        ::ratelimit_runtime::__private::micros(1000000u64),
                                                    ),
                                                    LEASE,
                                                ),
                                                80u8,
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
async fn once(tenant: u8, id: u8) -> Option<()> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::key(&tenant),
            1_u64,
            ::ratelimit_runtime::__private::key(&id),
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1, __rate_limit_id_1) => {
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
                                                &::ratelimit_runtime::Limit::on_error(
                                                    ::ratelimit_runtime::Limit::sliding(
                                                        ::core::concat!(::core::module_path!(), "::", "once"),
                                                        100,
                                                        ::ratelimit_runtime::__private::micros(1000000u64),
                                                    ),
                                                    ::ratelimit_runtime::OnError::Deny,
                                                )
                                            })
                                    },
                                    &__rate_limit_key_1,
                                    __rate_limit_cost_1,
                                ),
                            ],
                        )
                        .once(
                            const {
                                &::ratelimit_runtime::Limit::on_error(
                                    ::ratelimit_runtime::Limit::once(
                                        ::core::concat!(
                                            ::core::concat!(::core::module_path!(), "::", "once"),
                                            " once"
                                        ),
                                        ::ratelimit_runtime::__private::micros(3600000000u64),
                                    ),
                                    ::ratelimit_runtime::OnError::Deny,
                                )
                            },
                            &(&__rate_limit_key_1, &__rate_limit_id_1),
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
