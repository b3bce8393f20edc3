async fn patient() -> Option<()> {
    'decided: {
        let pending = match ::ratelimit_runtime::__private::check(
            match const {
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
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        None
    }
}
async fn shadow() -> Option<()> {
    'decided: {
        let pending = match crate::limits::__private::check(
            match const {
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
            } {
                limit => {
                    static SITE: crate::limits::__private::Site = crate::limits::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return crate::limits::__private::reject(rejection);
        }
    }
    {
        let () = ();
        None
    }
}
async fn hidden() -> Option<()> {
    'decided: {
        let pending = match {
            const {
                ::ratelimit_runtime::__private::decided_together(
                    &[
                        const { &::ratelimit_runtime::__private::limit(LOGIN) },
                        &::ratelimit_runtime::Limit::sliding(
                            "limit",
                            10,
                            ::ratelimit_runtime::__private::micros(1000000u64),
                        ),
                    ],
                )
            };
            match ((), 1_u32) {
                (__ratelimit_key, __ratelimit_cost) => {
                    let _ = (&__ratelimit_key, __ratelimit_cost);
                    ::ratelimit_runtime::__private::check_all(
                        &::ratelimit_runtime::__private::LimitGroup::new([
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
                                    &::ratelimit_runtime::Limit::hidden(
                                        ::ratelimit_runtime::__private::without_permit(LOGIN),
                                        false,
                                    )
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::constant(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key,
                                __ratelimit_cost,
                            ),
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
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
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key,
                                __ratelimit_cost,
                            ),
                        ]),
                    )
                }
            }
        } {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        None
    }
}
async fn leased() -> Option<()> {
    'decided: {
        let pending = match ::ratelimit_runtime::__private::check(
            match const {
                &::ratelimit_runtime::Limit::lease(
                    ::ratelimit_runtime::Limit::sliding(
                        "leased",
                        100,
                        ::ratelimit_runtime::__private::micros(1000000u64),
                    ),
                    LEASE,
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::named(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        None
    }
}
