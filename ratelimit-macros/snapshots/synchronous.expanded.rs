fn call(id: u64) -> Result<u64, Rejection> {
    {
        let decided = ::ratelimit_runtime::__private::check_now(
            match const {
                &::ratelimit_runtime::Limit::scope(
                    ::ratelimit_runtime::Limit::sliding(
                        ::core::concat!(::core::module_path!(), "::", "call"),
                        2,
                        ::ratelimit_runtime::__private::micros(30000000u64),
                    ),
                    ::ratelimit_runtime::Scope::Process,
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
            &id,
            1_u32,
        );
        if let ::core::result::Result::Err(rejection) = decided {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        Ok(id)
    }
}
fn hidden() -> impl Debug {
    {
        let decided = ::ratelimit_runtime::__private::check_now(
            match const {
                &::ratelimit_runtime::Limit::scope(
                    ::ratelimit_runtime::Limit::sliding(
                        ::core::concat!(::core::module_path!(), "::", "hidden"),
                        2,
                        ::ratelimit_runtime::__private::micros(30000000u64),
                    ),
                    ::ratelimit_runtime::Scope::Process,
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
        );
        if let ::core::result::Result::Err(rejection) = decided {
            return ::core::result::Result::Err(rejection);
        }
    }
    let output = (move || {
        {
            let () = ();
            1
        }
    })();
    ::core::result::Result::<_, ::ratelimit_runtime::Rejection>::Ok(output)
}
